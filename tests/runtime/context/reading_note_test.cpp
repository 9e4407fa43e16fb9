#include "runtime/context/reading_note.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/context/ingest.h"
#include "tests/support/temporary_folder.h"

// Tests how a saved context was read, as its file says.
namespace hayloft::runtime {
namespace {

using Kind = PrefillOptions::Kind;

PrefillOptions windowed(std::int64_t window, std::int64_t sinks) {
  return {.kind = Kind::window, .window = window, .sinks = sinks};
}
PrefillOptions topk(std::int64_t window, Budget k) {
  return {.kind = Kind::topk, .window = window, .k = k};
}

TEST(ReadingNote, IsReadAsItWasWritten) {
  for (const PrefillOptions& prefill : {PrefillOptions{}, windowed(7, 0), topk(1, {33, 0}), topk(4096, {0, 1.0 / 3}),
                                        PrefillOptions{.kind = Kind::sparse, .sparse = {.mass = 1.0 / 3}},
                                        PrefillOptions{.kind = Kind::sparse, .sparse = {.density = 0.05}},
                                        PrefillOptions{.kind = Kind::sparse, .sparse = {.fidelity = 0.97}}}) {
    const ReadingNote note = read_note(write_note({48, prefill}), "a.hay");
    EXPECT_EQ(note.chunk_tokens, 48);
    EXPECT_EQ(write_note(note), write_note({48, prefill}));
    EXPECT_EQ(note.prefill.kind, prefill.kind);
    EXPECT_EQ(note.prefill.sparse.mass, prefill.sparse.mass);
    EXPECT_EQ(note.prefill.sparse.fidelity, prefill.sparse.fidelity);
    EXPECT_EQ(note.prefill.sparse.density, prefill.sparse.density);
    if (prefill.kind != Kind::topk) continue;
    EXPECT_EQ(note.prefill.k.count, prefill.k.count);
    EXPECT_EQ(note.prefill.k.share, prefill.k.share);
  }
  EXPECT_EQ(read_note(write_note({48, windowed(7, 0), 8}), "a.hay").checkpoints, 8);
  EXPECT_EQ(read_note("chunk_tokens=2048", "a.hay").checkpoints, 0);
  EXPECT_EQ(read_note("chunk_tokens=2048", "a.hay").products, gpu::Products::exact);
  EXPECT_EQ(write_note({48, windowed(7, 0), 8, gpu::Products::int8}),
            "chunk_tokens=48 checkpoints=8 products=int8 prefill=window window=7 sinks=0");
  EXPECT_EQ(read_note("chunk_tokens=48 products=int8", "a.hay").products, gpu::Products::int8);
  ReadingNote decoded{.chunk_tokens = 48, .prefill = {}};
  decoded.approximate = {.first = 900,
                         .methods = {"topk k=16", "sparq r=4 k=16 rest=draw", "ann IVF64,Flat k=16", "50%; é"}};
  EXPECT_EQ(write_note(decoded),
            "chunk_tokens=48 decoded_from=900 decoded=50%25%3B,%C3%A9;ann,IVF64%2CFlat,k=16;"
            "sparq,r=4,k=16,rest=draw;topk,k=16");
  EXPECT_EQ(read_note(write_note(decoded), "a.hay").approximate.first, 900);
  EXPECT_EQ(read_note(write_note(decoded), "a.hay").approximate.methods, decoded.approximate.methods);
  EXPECT_EQ(read_note("chunk_tokens=2048", "a.hay").prefill.kind, Kind::exact) << "as contexts say that know no other";
  EXPECT_EQ(read_note(" sinks=1  prefill=window window=9 chunk_tokens=2", "a.hay").prefill.window, 9);
}

TEST(ReadingNote, ThatIsNotUnderstoodIsRefusedByTheFilesName) {
  for (const char* text : {"",
                           "prefill=exact",
                           "chunk_tokens=0",
                           "chunk_tokens=12x",
                           "chunk_tokens=1 chunk_tokens=2",
                           "chunk_tokens=8 prefill=magic",
                           "chunk_tokens=8 prefill=sparse",
                           "chunk_tokens=8 prefill=sparse fidelity=0",
                           "chunk_tokens=8 prefill=sparse mass=0 density=0",
                           "chunk_tokens=8 prefill=sparse mass=0.5 density=2",
                           "chunk_tokens=8 prefill=window window=4",
                           "chunk_tokens=8 prefill=topk window=4",
                           "chunk_tokens=8 prefill=topk window=0 k=3",
                           "chunk_tokens=8 prefill=topk window=4 k_share=2",
                           "chunk_tokens=8 prefill=topk window=4 k=3 k_share=0.5",
                           "chunk_tokens=8 checkpoints=0",
                           "chunk_tokens=8 products=exact",
                           "chunk_tokens=8 decoded_from=3",
                           "chunk_tokens=8 decoded=topk",
                           "chunk_tokens=8 decoded_from=-1 decoded=topk",
                           "chunk_tokens=8 decoded_from=1 decoded=",
                           "chunk_tokens=8 decoded_from=1 decoded=topk;",
                           "chunk_tokens=8 decoded_from=1 decoded=a%2",
                           "chunk_tokens=8 decoded_from=1 decoded=a%-1",
                           "chunk_tokens=8 decoded_from=1 decoded=to\npk",
                           "chunk_tokens=8 later=1",
                           "chunk_tokens"}) {
    try {
      read_note(text, "a.hay");
      ADD_FAILURE() << "understood: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("a.hay"), std::string::npos) << error.what();
    }
  }
}

// A file of which a part was read with rounded inputs says so from then on, and so does what goes on with it exactly.
TEST(SavedContext, SaysThatInputsWereRounded) {
  const std::filesystem::path folder = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  const test::TemporaryFolder place;
  const offload::Topology topology;
  const offload::Threads threads{2};
  const auto exact = gpu::make_cpu_backend(threads), rounded = gpu::make_cpu_backend(threads, gpu::Products::int8);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  const Tokenizer tokenizer(folder);
  EXPECT_THROW(Model(folder, *rounded), Error) << "whose weights are not quantised";
  const Model plain(folder, *exact, WeightForm::q8), int8(folder, *rounded, WeightForm::q8);
  const ModelSource source{plain, tokenizer, folder}, rounding{int8, tokenizer, folder};
  const std::string text = "The hay is in the loft. The cat is on the hay. ";
  const auto note = [&] { return offload::Snapshot::open(place / "a.hay").description().note; };
  const auto products = [&] {
    return open_context(source, arena, offload::Snapshot::open(place / "a.hay"), {}).products();
  };
  IngestOptions options;
  options.session.cache = {.block_tokens = 32, .window = 16};
  options.session.chunk_tokens = 24;
  ingest(source, arena, text, place / "a.hay", options);
  EXPECT_EQ(note(), "chunk_tokens=24");
  EXPECT_EQ(products(), gpu::Products::exact);
  append_to(rounding, arena, "The dog is in the yard, and barks at the cat. ", place / "a.hay", options);
  EXPECT_EQ(note(), "chunk_tokens=24 products=int8");
  append_to(source, arena, "The moon is over the loft. ", place / "a.hay", options);
  EXPECT_EQ(note(), "chunk_tokens=24 products=int8");
  EXPECT_EQ(products(), gpu::Products::int8);
  ingest(rounding, arena, text, place / "b.hay", options);
  EXPECT_EQ(offload::Snapshot::open(place / "b.hay").description().note, "chunk_tokens=24 products=int8");
}

TEST(SavedContext, GoesOnAsItWasBegunWhateverIsAskedForLater) {
  const std::filesystem::path folder = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  const test::TemporaryFolder place;
  const offload::Topology topology;
  const offload::Threads threads{2};
  const auto backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  const Tokenizer tokenizer(folder);
  const Model model(folder, *backend);
  const ModelSource source{model, tokenizer, folder};
  IngestOptions options;
  options.session.cache = {.block_tokens = 32, .window = 16};
  options.session.chunk_tokens = 24;
  options.session.prefill = windowed(20, 3);
  const std::string text = "The hay is in the loft. The cat is on the hay. The loft is over the barn. ";
  ingest(source, arena, text, place / "a.hay", options);
  options.session.chunk_tokens = 5;
  options.session.prefill = topk(9, {2, 0});
  append_to(source, arena, text, place / "a.hay", options);
  const offload::Snapshot snapshot = offload::Snapshot::open(place / "a.hay");
  EXPECT_EQ(snapshot.description().note, "chunk_tokens=24 prefill=window window=20 sinks=3");
  EXPECT_EQ(snapshot.finished_tokens() % 24, 0);
  EXPECT_EQ(open_context(source, arena, snapshot, {}).tokens(), snapshot.token_count());
}

}  // namespace
}  // namespace hayloft::runtime
