#include <fstream>
#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "runtime/context/foreign_context.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/golden_models.h"
#include "tests/support/refusal.h"

// Saved contexts of a model whose sliding layers have heads of another shape than its store.
namespace hayloft::runtime {
namespace {

// The small Gemma 4, beside which lies a tokenizer of printable characters, of which it has as many tokens at least.
std::filesystem::path gemma4_folder(const std::filesystem::path& folder) {
  std::filesystem::copy(goldens / "gemma4", folder);
  nlohmann::json vocabulary = {{"\u0120", 0}, {"\u010a", 1}};  // the space and the newline of byte-level vocabularies
  for (char c = '!'; c <= '~'; ++c) vocabulary[std::string(1, c)] = vocabulary.size();
  const nlohmann::json tokenizer = {
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer.dump();
  return folder;
}

class Gemma4IngestTest : public IngestTest {
 protected:
  Gemma4IngestTest() : IngestTest(gemma4_folder) { text.resize(1400); }  // a token for each character
};

TEST_F(Gemma4IngestTest, ResumedAndAppendedAreOneGoBitForBit) {
  options.checkpoints = 3;
  const std::string expected = one_go();
  const std::filesystem::path resumed = folder.path() / "resumed.hay";
  interrupted([&](const PrefillProgress& progress) { return ingest(source, arena, text, resumed, options, progress); },
              [] {});
  EXPECT_EQ(digest(resumed), expected);
  EXPECT_EQ(in_pieces({1, text.size() / 2}), std::vector<std::string>(2, expected));
}

TEST_F(Gemma4IngestTest, AReopenedContextAnswersAsTheSessionThatWasNeverSaved) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  Session fresh(model, arena, options.session);
  fresh.append(tokenizer.encode(text));
  const Session reopened = open_context(source, arena, offload::Snapshot::open(path), {});
  EXPECT_EQ(answer(reopened.fork()), answer(fresh.fork()));
}

TEST_F(Gemma4IngestTest, ItIsNeitherExportedNorTakenFromOtherPrograms) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  EXPECT_TRUE(test::refuses([&] { export_context(snapshot, arena, folder.path() / "out.safetensors"); },
                            {"saved.hay", "heads of another shape", "cannot be exported"}));
  EXPECT_TRUE(test::refuses([&] { ContextModel of(model_path); }, {"heads of another shape"}));
}

TEST_F(Gemma4IngestTest, HeadsOfAnotherShapeAreNotExportedWhereTheirRowsAreAsWide) {
  offload::SnapshotDescription description;
  description.shape = {0, 1, 32, 16, offload::ColumnFormat::f16};
  description.model_layers = 1;
  const std::vector<std::int32_t> tokens(4, 3);
  const std::vector<f16> rows(4 * 2 * 32);
  const std::vector<offload::TailImage> tails = {{-1, 0, 4, rows, {}, {}, 2}};  // two heads of 16
  offload::SnapshotWriter writer = offload::SnapshotWriter::create(folder.path() / "wide.hay", description);
  writer.checkpoint(offload::Store(arena, description.shape), tokens, tails);
  EXPECT_TRUE(test::refuses([&] { export_context(writer.snapshot(), arena, folder.path() / "out.safetensors"); },
                            {"heads of another shape"}));
}

}  // namespace
}  // namespace hayloft::runtime
