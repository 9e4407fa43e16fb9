#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "runtime/context/earlier_reads.h"
#include "runtime/decode/prefill_read.h"
#include "runtime/fidelity/attention_statement.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/refusal.h"

// Contexts that are read sparsely: the same however the reading was cut, and they keep what they have left out.
namespace hayloft::runtime {
namespace {

class SparseIngestTest : public IngestTest {
 protected:
  SparseIngestTest() : IngestTest([](const auto& at) { return test::write_hybrid_model(at, {.layers = 8}); }) {
    options.session.chunk_tokens = 256;
    options.session.prefill = {.kind = PrefillOptions::Kind::sparse, .sparse = {.density = 0.2}};
  }

  std::string line_of(const std::filesystem::path& path) const {
    return prefill_read_line(saved_prefill_read(offload::Snapshot::open(path)));
  }

  // Reads tokens into a context of that name, beside which lies no more than is given.
  std::filesystem::path saved(const std::string& name, const SessionOptions& reading,
                              const std::vector<std::int32_t>& tokens,
                              std::span<const offload::SnapshotAttachment> beside = {}) {
    const std::filesystem::path path = folder.path() / name;
    Session session(model, arena, reading);
    session.append(tokens);
    const std::vector<offload::SnapshotTail> tails = session.cache().tails();
    std::vector<offload::TailImage> images;
    for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
    offload::save_snapshot(path, describe_context(source, reading), session.cache().store(), tokens, images, true,
                           beside);
    return path;
  }

  // Reads the text into a context of that name, which does not say what it left out.
  std::filesystem::path without_figures(const std::string& name) {
    return saved(name, options.session, tokenizer.encode_prompt(text));
  }

  // Says how exact an answer behind the context is.
  std::string said_of(const std::filesystem::path& path) {
    AttentionStatement said;
    said.add(open_context(source, arena, offload::Snapshot::open(path), {}));
    return said.text();
  }
};

TEST_F(SparseIngestTest, ResumedAndAppendedAreOneGoBitForBitAndSayTheSameLoss) {
  const std::filesystem::path whole = folder.path() / "whole.hay", resumed = folder.path() / "resumed.hay";
  const IngestResult result = ingest(source, arena, text, whole, options);
  ASSERT_TRUE(left_out(result.prefill_read));
  EXPECT_EQ(line_of(whole), prefill_read_line(result.prefill_read));
  interrupted([&](const PrefillProgress& progress) { return ingest(source, arena, text, resumed, options, progress); },
              [] {});
  EXPECT_EQ(digest(resumed), digest(whole));
  EXPECT_EQ(line_of(resumed), line_of(whole));
  EXPECT_EQ(in_pieces({text.size() / 2}), std::vector{digest(whole)});

  options.session.prefill = {};
  ingest(source, arena, text, folder.path() / "exact.hay", options);
  EXPECT_NE(digest(folder.path() / "exact.hay"), digest(whole));
  EXPECT_EQ(line_of(folder.path() / "exact.hay"), "");
}

TEST_F(SparseIngestTest, OfAFidelityTheResultDoesNotDependOnWhereItWasCutEither) {
  options.session.prefill.sparse = {.fidelity = 0.6};
  const std::filesystem::path whole = folder.path() / "whole.hay";
  ASSERT_TRUE(left_out(ingest(source, arena, text, whole, options).prefill_read));
  EXPECT_EQ(in_pieces({text.size() / 3}), std::vector{digest(whole)});
}

TEST_F(SparseIngestTest, AnUpdateFromAnEarlierCheckpointSaysTheLossOfTheWholeText) {
  const std::size_t cut = text.find(". ", text.size() * 7 / 8) + 1;
  const std::string changed = text.substr(0, cut) + " But the captain had other plans. They sailed at dawn.";
  const std::filesystem::path path = folder.path() / "updated.hay", anew = folder.path() / "anew.hay";
  options.checkpoints = 4;
  ingest(source, arena, text, path, options);
  options.checkpoints = 0;
  const std::vector<std::int64_t> earlier = offload::Snapshot::open(path).earlier_checkpoints();
  ASSERT_TRUE(left_out(ingest(source, arena, changed, anew, options).prefill_read));
  for (const std::string& now : {changed, text, changed}) {
    const bool first = now == changed;
    const IngestResult result = update(source, arena, now, path, options);
    EXPECT_TRUE(std::ranges::find(earlier, result.resumed_from) != earlier.end()) << result.resumed_from;
    if (!first) continue;
    EXPECT_EQ(digest(path), digest(anew));
    EXPECT_EQ(line_of(path), line_of(anew));
    EXPECT_EQ(prefill_read_line(result.prefill_read), line_of(anew));
  }
}

TEST_F(SparseIngestTest, WhatItLeftOutIsNotKnownWhereItWasSavedWithoutThat) {
  const std::filesystem::path path = without_figures("bare.hay");
  EXPECT_NE(said_of(path).find("sparse density=20%, of which nobody knows what it left out"), std::string::npos);
}

TEST_F(SparseIngestTest, NorIsItWhereMoreIsAddedToSuchAOne) {
  const std::filesystem::path path = without_figures("appended.hay");
  append_to(source, arena, " More of it. " + text, path, options);
  EXPECT_NE(said_of(path).find("of which nobody knows what it left out"), std::string::npos) << said_of(path);
  EXPECT_EQ(line_of(path), "") << "it is not of all of it";
  const IngestResult anew = update(source, arena, text + " Less of it.", path, options);
  EXPECT_EQ(anew.resumed_from, 0) << "it would go on from what nobody knows";
  EXPECT_EQ(said_of(path).find("nobody knows"), std::string::npos) << said_of(path);
}

// Its note is that of the exact part.
TEST_F(SparseIngestTest, APartThatWasReadSparselyIsNotedWhereItsFiguresAreNotCarried) {
  const auto kind_of = [&](const PrefillRead& read) {
    const offload::SnapshotAttachment figures{std::string(prefill_read_name), save_prefill_read(read)};
    return carried_note(offload::Snapshot::open(saved("part.hay", {}, {5}, {&figures, 1}))).prefill.kind;
  };
  gpu::SparseRead left, whole;
  left.visible = 100, left.attended = 20;
  whole.visible = whole.attended = 100;
  EXPECT_EQ(kind_of({left}), PrefillOptions::Kind::sparse);
  EXPECT_EQ(kind_of({whole}), PrefillOptions::Kind::exact);
}

TEST_F(SparseIngestTest, OfAContextThatKeepsFewerCheckpointsThanItDidNothingOldIsTrusted) {
  const std::filesystem::path path = folder.path() / "fewer.hay";
  options.checkpoints = 4;
  ingest(source, arena, text, path, options);
  const auto earlier = [&](int kept) { return EarlierReads(offload::Snapshot::open(path), kept); };
  const std::vector<std::int64_t> checkpoints = offload::Snapshot::open(path).earlier_checkpoints();
  ASSERT_FALSE(checkpoints.empty());
  ASSERT_TRUE(earlier(4).at(checkpoints.front()));
  options.checkpoints = 1;
  append_to(source, arena, " More of it. " + text, path, options);
  for (const std::int64_t each : checkpoints) EXPECT_FALSE(earlier(4).at(each)) << each;
}

// The bundled model's only global layer is its last, whose attention nobody needs while a text is read.
TEST_F(IngestTest, ASparseReadingThatCouldLeaveNothingOutIsExact) {
  options.session.prefill = {.kind = PrefillOptions::Kind::sparse, .sparse = {.density = 0.2}};
  ingest(source, arena, text, folder.path() / "needle.hay", options);
  Session session = open_context(source, arena, offload::Snapshot::open(folder.path() / "needle.hay"), {});
  session.step(7);
  AttentionStatement said;
  said.add(session);
  EXPECT_TRUE(said.exact()) << said.text();
}

TEST_F(SparseIngestTest, NoAnswerBehindOneIsCalledExact) {
  const std::filesystem::path path = folder.path() / "sparse.hay";
  ingest(source, arena, text, path, options);
  Session session = open_context(source, arena, offload::Snapshot::open(path), {});
  answer(session.fork());
  Session asked = session.fork();
  asked.step(7);
  AttentionStatement said;
  said.add(asked);
  EXPECT_FALSE(said.exact());
  EXPECT_NE(said.text().find("the prompt was read by sparse: "), std::string::npos) << said.text();
}

TEST_F(SparseIngestTest, NorBehindOneThatWasReadByAWindowThoughTheQuestionIsReadExactly) {
  options.session.prefill = {.kind = PrefillOptions::Kind::window, .window = 64, .sinks = 4};
  const std::filesystem::path path = folder.path() / "window.hay";
  ingest(source, arena, text, path, options);
  Session asked = open_context(source, arena, offload::Snapshot::open(path), {}).fork();
  asked.step(7);
  AttentionStatement said;
  said.add(asked);
  EXPECT_FALSE(said.exact());
  EXPECT_NE(said.text().find("the prompt was read by window w=64 s=4"), std::string::npos) << said.text();
}

TEST_F(SparseIngestTest, AWindowThatIsAsLongAsTheTextLeavesNothingOut) {
  const std::int64_t tokens = ingest(source, arena, text, folder.path() / "whole.hay", options).tokens;
  for (const std::int64_t spare : {0, -1}) {
    options.session.prefill = {.kind = PrefillOptions::Kind::window, .window = tokens + spare, .sinks = 0};
    const std::filesystem::path path = folder.path() / fmt::format("window{}.hay", spare);
    ingest(source, arena, text, path, options);
    Session asked = open_context(source, arena, offload::Snapshot::open(path), {}).fork();
    asked.step(7);
    AttentionStatement said;
    said.add(asked);
    EXPECT_EQ(said.exact(), spare == 0) << said.text();
  }
}

TEST_F(SparseIngestTest, BothWaysOfReadingAreSaidWhereTwoWereUsed) {
  options.session.prefill = {.kind = PrefillOptions::Kind::window, .window = 64, .sinks = 4};
  const std::filesystem::path path = folder.path() / "window.hay";
  ingest(source, arena, text, path, options);
  SessionOptions reading;
  reading.chunk_tokens = 256;
  reading.prefill = {.kind = PrefillOptions::Kind::sparse, .sparse = {.density = 0.2}};
  Session asked = open_context(source, arena, offload::Snapshot::open(path), reading).fork();
  const std::vector<std::int32_t> prompt = tokenizer.encode(text, false);
  asked.append(prompt);
  asked.step(7);
  AttentionStatement said;
  said.add(asked);
  EXPECT_NE(said.text().find("read by window w=64 s=4, and by sparse: "), std::string::npos) << said.text();
  said.add(asked);
  EXPECT_EQ(said.text().find("sparse: "), said.text().rfind("sparse: ")) << said.text();
}

TEST_F(SparseIngestTest, WhatItLeftOutIsNotKnownWhereThatIsDamaged) {
  const std::filesystem::path path = folder.path() / "damaged.hay";
  ingest(source, arena, text, path, options);
  std::string image;
  {
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    const auto figures = snapshot.attachment(prefill_read_name);
    const std::string bytes(reinterpret_cast<const char*>(figures->data()), figures->size());
    std::ifstream file(path, std::ios::binary);
    image.assign(std::istreambuf_iterator<char>(file), {});
    image[image.rfind(bytes) + bytes.size() / 2] ^= 1;
  }
  std::ofstream(path, std::ios::binary) << image;
  Session asked = open_context(source, arena, offload::Snapshot::open(path), {}).fork();
  asked.step(7);
  AttentionStatement said;
  said.add(asked);
  EXPECT_FALSE(said.exact());
  EXPECT_NE(said.text().find("sparse density=20%, of which nobody knows what it left out"), std::string::npos)
      << said.text();
  EXPECT_TRUE(test::refuses([&] { append_to(source, arena, " More of it.", path, options); },
                            {"damaged.hay", std::string(prefill_read_name)}));
  EXPECT_EQ(update(source, arena, text, path, options).read, 0) << "there is nothing to do";
}

}  // namespace
}  // namespace hayloft::runtime
