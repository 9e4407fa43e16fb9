// Calls that no caller can mean: they are refused by an exception, and the session goes on as if they had not been.
#include <limits>
#include <stdexcept>

#include "runtime/decode/prefill_attention.h"
#include "tests/runtime/decode/session_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

class SessionMisuseTest : public SessionTest {
 protected:
  SessionMisuseTest() { session.append(text); }

  // Fails unless the session answers as one that has seen no misuse.
  void expect_as_before() {
    Session fresh(model, arena, options);
    fresh.append(text);
    EXPECT_EQ(session.tokens(), fresh.tokens());
    EXPECT_EQ(session.step(3), fresh.step(3));
  }

  std::vector<std::int32_t> text = random_tokens(60, model.config().vocab_size, 1);
  Session session{model, arena, options};
};

TEST_F(SessionMisuseTest, NoMethodIsNoMethodToDecodeBy) {
  EXPECT_THROW(session.set_method(nullptr), std::logic_error);
  EXPECT_THROW(session.set_draft_method(nullptr), std::logic_error);
  expect_as_before();
}

TEST_F(SessionMisuseTest, DraftsNeedWhatMakesThem) {
  Sampler greedy({});
  EXPECT_THROW(session.draft(1, greedy), std::logic_error);
  EXPECT_THROW(session.draft_costs(DraftSource::method), std::logic_error);
  EXPECT_TRUE(test::refuses([&] { session.draft_costs(DraftSource::head); }, {"without its head"}));
  expect_as_before();
}

TEST_F(SessionMisuseTest, AMethodForLongerHeadsIsRefusedByItsOption) {
  const int longer = 2 * model.config().head_dim;
  for (const char* name : {"sparq:r={}:k=8", "lowrank:r={}:k=8"}) {
    const SharedMethod other = make_method(method(fmt::format(fmt::runtime(name), longer)), longer);
    EXPECT_TRUE(test::refuses([&] { session.set_method(other); }, {fmt::format("--attn-r {}", longer)}));
    EXPECT_TRUE(test::refuses([&] { session.set_draft_method(other); }, {fmt::format("--attn-r {}", longer)}));
  }
  expect_as_before();
}

TEST_F(SessionMisuseTest, StepsTogetherAreOfDifferentSessionsOfOneModel) {
  const Model other(goldens / "llama", *backend);
  Session of_other(other, arena, options);
  of_other.append(text);
  const auto together = [](Session* a, Session* b) {
    std::vector<Session::Step> steps(2);
    steps[0].session = a;
    steps[1].session = b;
    Session::step_together(steps);
  };
  EXPECT_THROW(together(&session, nullptr), std::logic_error);
  EXPECT_THROW(together(nullptr, &session), std::logic_error);
  EXPECT_THROW(together(&session, &session), std::logic_error);
  EXPECT_THROW(together(&session, &of_other), std::logic_error);
  EXPECT_EQ(of_other.tokens(), std::ssize(text));
  expect_as_before();
}

TEST_F(SessionMisuseTest, RowsHaveTheShapeOfTheirTokens) {
  const ModelConfig& config = model.config();
  const auto row = static_cast<std::size_t>(2 * config.kv_heads * config.head_dim);
  const std::vector<f16> rows(8 * row);
  const auto layers = [&](std::int64_t tokens, std::size_t held) {
    offload::TailImage image;
    image.tokens = tokens;
    image.rows = std::span(rows).first(held * row);
    return std::vector<offload::TailImage>(static_cast<std::size_t>(config.layers), image);
  };
  EXPECT_THROW(session.append_rows({}, 3), std::logic_error);
  EXPECT_THROW(session.append_rows(layers(0, 0), 0), std::logic_error);
  EXPECT_THROW(session.append_rows(layers(3, 3), -1), std::logic_error);
  EXPECT_THROW(session.append_rows(layers(3, 0), 3), std::logic_error);
  EXPECT_THROW(session.append_rows(layers(8, 8), 3), std::logic_error);
  EXPECT_THROW(session.append_rows(layers(1, 1), 3), std::logic_error) << "a global layer has every token";
  EXPECT_THROW(session.hold_in_tails(-1), std::logic_error);
  EXPECT_THROW(session.hold_in_tails(std::int64_t{1} << 60), std::exception);
  expect_as_before();
  session.append_rows(layers(3, 3), 3);
  EXPECT_EQ(session.tokens(), std::ssize(text) + 4);
}

TEST_F(SessionMisuseTest, NoAttenderObserverOrWorkspaceIsRefused) {
  SessionOptions without = options;
  EXPECT_THROW(without.attend_by(nullptr), std::logic_error);
  without.attender = nullptr;
  EXPECT_THROW(Session(model, arena, without), std::logic_error);
  EXPECT_THROW(session.add_observer(nullptr), std::logic_error);
  EXPECT_THROW(session.share_workspace(nullptr), std::logic_error);
  expect_as_before();
}

// Chunk by chunk the ids before it had been read already.
TEST_F(SessionMisuseTest, AnIdThatIsNoneLateInAPromptLeavesTheSessionAsItWas) {
  options.chunk_tokens = 16;
  session = Session(model, arena, options);
  session.append(text);
  for (const std::int32_t id : {-1, model.config().vocab_size}) {
    std::vector<std::int32_t> more = text;
    more.back() = id;
    EXPECT_TRUE(test::refuses([&] { session.append(more); }, {fmt::format("token id {}", id)}));
    EXPECT_TRUE(test::refuses([&] { session.score(more); }, {fmt::format("token id {}", id)}));
  }
  expect_as_before();
}

TEST_F(SessionMisuseTest, ANegativeWindowOfTheCacheIsRefused) {
  options.cache.window = -1;
  EXPECT_TRUE(test::refuses([&] { Session(model, arena, options); }, {"window of -1 tokens"}));
}

TEST_F(SessionMisuseTest, ACacheOfAnotherModelIsRefused) {
  const Model other(goldens / "mistral-sliding", *backend);
  Cache cache(*backend, arena, other.config(), options.cache);
  Workspace workspace;
  PrefillAttention exact({}, {}, options.attender);
  EXPECT_THROW(model.forward(cache, workspace, text, Want::none, exact), std::logic_error);
  EXPECT_THROW(model.forward_by_layer(cache, workspace, text, 16, exact, {}), std::logic_error);
  EXPECT_THROW(model.verify(cache, workspace, std::span(text).first(1), exact, [](const float*, int T) { return T; }),
               std::logic_error);
  std::vector<ModelStep> steps(1);
  steps[0].cache = &cache;
  steps[0].attention = &exact;
  model.forward_together(steps, workspace);
  EXPECT_THROW(std::rethrow_exception(steps[0].failure), std::logic_error);
  EXPECT_EQ(cache.tokens(), 0);
}

}  // namespace
}  // namespace hayloft::runtime
