#include "runtime/attention/approximate_tokens.h"

#include "offload/snapshot/writer.h"
#include "runtime/context/reading_note.h"
#include "runtime/fidelity/attention_statement.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/golden_models.h"

// Tests what is known of tokens that were decoded by steps that left positions out.
namespace hayloft::runtime {
namespace {

std::string said_of(const Session& session) {
  AttentionStatement said;
  said.add(session);
  return said.text();
}

class ApproximateTokensTest : public IngestTest {
 protected:
  SharedMethod method(const char* words) const { return make_method(parse_method(words, {}), llama.config().head_dim); }

  // Reads a prompt of 100 tokens and decodes ten more by that method.
  Session decoded(const char* words) {
    Session session(llama, arena, options.session);
    session.set_method(method(words));
    session.append(std::vector<std::int32_t>(100, 5));
    for (int i = 0; i < 10; ++i) session.step(7);
    return session;
  }

  Model llama{goldens / "llama", *backend};
};

TEST_F(ApproximateTokensTest, AForkThatGoesOnExactlyKnowsOfThem) {
  Session fork = decoded("topk:k=4").fork();
  fork.set_method(method("dense"));
  fork.step(8);
  EXPECT_EQ(
      said_of(fork),
      "approximate: 100.0% of the positions attended to, by dense in 3 steps x layers; the prompt was read by topk k=4 "
      "where it was decoded");
  EXPECT_EQ(fork.fork().approximate_tokens().first, 100);
}

TEST_F(ApproximateTokensTest, AForkAtTheEndOfThePromptIsExact) {
  options.session.cache.block_tokens = 4096;
  Session fork = decoded("topk:k=4").fork_at(100);
  fork.set_method(method("dense"));
  fork.step(8);
  EXPECT_EQ(said_of(fork), "exact");
}

TEST_F(ApproximateTokensTest, StepsThatLeaveNothingOutAreExactWhateverTheirMethod) {
  for (const char* const words : {"dense", "topk:k=4096"}) {
    EXPECT_TRUE(decoded(words).approximate_tokens().none()) << words;
  }
}

TEST_F(ApproximateTokensTest, WhatTheLastLayerLeavesOutIsInNoKeyOrValue) {
  Session session(model, arena, options.session);
  session.set_method(make_method(parse_method("topk:k=4", {}), model.config().head_dim));
  session.append(tokenizer.encode_prompt(text));
  session.step(7);
  EXPECT_LT(session.attended_share(), 1);
  EXPECT_TRUE(session.approximate_tokens().none()) << "the bundled model's one global layer is its last";
}

TEST_F(ApproximateTokensTest, ManyMethodsAreOthers) {
  ApproximateTokens tokens;
  for (int i = 0; i < 40; ++i) tokens.add(100 - i, fmt::format("topk k={}", i));
  EXPECT_EQ(tokens.first, 61);
  EXPECT_EQ(tokens.methods.size(), ApproximateTokens::most_methods + 1);
  EXPECT_TRUE(tokens.methods.contains("others"));
}

TEST_F(ApproximateTokensTest, AContextThatGoesBackBehindThemForgetsThem) {
  options.checkpoints = 8;
  const std::filesystem::path path = folder.path() / "decoded.hay";
  ingest(source, arena, text, path, options);
  const std::int64_t tokens = offload::Snapshot::open(path).token_count();
  const auto noted = [&] {
    return read_note(offload::Snapshot::open(path).description().note, path.string()).approximate;
  };
  {
    offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(path);
    ReadingNote note = read_note(writer.snapshot().description().note, path.string());
    note.approximate.add(tokens - 60, "topk k=4");
    writer.set_note(write_note(note));
    writer.keep(options.checkpoints);
    const Session session = open_context(source, arena, writer.snapshot(), options.session);
    save_checkpoint(writer, session, writer.snapshot().tokens(), {}, true);
    writer.finish(path);
  }
  ASSERT_EQ(noted().first, tokens - 60);
  EXPECT_NE(said_of(open_context(source, arena, offload::Snapshot::open(path), options.session)), "exact");
  append_to(source, arena, " More of it.", path, options);
  EXPECT_EQ(noted().first, tokens - 60);
  const IngestResult gone_back = update(source, arena, text.substr(0, text.size() - 600), path, options);
  EXPECT_GT(gone_back.resumed_from, 0);
  EXPECT_TRUE(noted().none());
  EXPECT_EQ(said_of(open_context(source, arena, offload::Snapshot::open(path), options.session)), "exact");
}

}  // namespace
}  // namespace hayloft::runtime
