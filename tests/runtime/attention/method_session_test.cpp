#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/attention/methods/heavy_hitters.h"
#include "runtime/decode/session.h"
#include "tests/support/golden_models.h"
#include "tests/support/parameter_name.h"

// Methods that keep something of a sequence, in whole sessions: what they keep follows prompts, steps and forks.
namespace hayloft::runtime {
namespace {

// Logits of the same arithmetic in another order: some thousand f32 roundings of values of the logits' own size.
void expect_close(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0;
  for (const float x : b) largest = std::max(largest, std::fabs(x));
  const float tolerance = 1000 * std::numeric_limits<float>::epsilon() * largest;
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

class MethodSessionTest : public ::testing::TestWithParam<const char*> {
 protected:
  MethodSessionTest() {
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.chunk_tokens = 24;
    std::mt19937 random(3);
    tokens.resize(130);
    for (auto& token : tokens) {
      token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(model.config().vocab_size));
    }
  }

  SharedMethod method(const std::string& text) const {
    return make_method(parse_method(text, {}), model.config().head_dim);
  }

  // A session that `watched` by the method has read all but the last tokens.
  Session read(const Method& watched, PrefillOptions::Order order = PrefillOptions::Order::chunk) {
    SessionOptions with_order = options;
    with_order.prefill.order = order;
    Session session(model, arena, with_order);
    session.attach_method(watched);
    session.append(std::span(tokens).first(100));
    return session;
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{goldens / GetParam(), *backend};
  SessionOptions options;
  std::vector<std::int32_t> tokens;
};

TEST_P(MethodSessionTest, EverythingKeptAndChosenIsDenseWhileTheSequenceGrows) {
  const int d = model.config().head_dim;
  const std::string all_projections = "lowrank:k=100%:r=" + std::to_string(d);
  for (const std::string& text :
       {std::string("h2o:k=1000"), std::string("oracle:k=100%"), std::string("flexgen:k=100%"),
        std::string("pages:page=16:k=100%"), all_projections}) {
    SCOPED_TRACE(text);
    const auto tested = method(text);
    const auto dense = method("dense");
    Session session = read(*tested);
    session.set_method(tested);
    Session expected = read(*dense);
    // Blocks spill on the way, and what is kept follows.
    for (std::size_t i = 100; i < 130; ++i) {
      expect_close(session.step(tokens[i]), expected.step(tokens[i]));
    }
  }
}

TEST_P(MethodSessionTest, AShortSequenceLiesInTheTailWhichIsAttendedWhole) {
  for (const char* text :
       {"sparq:r=4:k=4", "topk:k=4", "flexgen:k=4", "oracle:k=4", "lowrank:r=4:k=4", "pages:page=16:k=4", "h2o:k=20"}) {
    SCOPED_TRACE(text);
    const auto tested = method(text);
    Session session(model, arena, options);
    session.set_method(tested);
    Session expected(model, arena, options);
    for (std::size_t i = 0; i < 16; ++i) {
      expect_close(session.step(tokens[i]), expected.step(tokens[i]));
    }
  }
}

TEST_P(MethodSessionTest, HeavyHittersOfALayerAreTheSameByChunksAndByLayers) {
  const auto h2o = method("h2o:k=20");
  const Session by_chunk = read(*h2o, PrefillOptions::Order::chunk);
  const Session by_layer = read(*h2o, PrefillOptions::Order::layer);
  for (int layer = 0; layer < model.config().global_layers(); ++layer) {
    const auto kept = [&](const Session& session) {
      return static_cast<const HeavyHitters&>(*session.state(*h2o)).positions(layer);
    };
    EXPECT_EQ(kept(by_chunk), kept(by_layer)) << "layer " << layer;
  }
}

TEST_P(MethodSessionTest, ForksOfWhatIsKeptAnswerAsTheirSessionWould) {
  for (const char* text : {"h2o:k=20", "lowrank:r=4:k=20", "pages:page=16:k=20"}) {
    SCOPED_TRACE(text);
    const auto tested = method(text);
    Session session = read(*tested);
    session.set_method(tested);
    Session fork = session.fork();
    const std::vector<float> first = session.step(tokens[100]);
    for (std::size_t i = 101; i < 130; ++i) session.step(tokens[i]);
    EXPECT_EQ(fork.step(tokens[100]), first);
  }
}

TEST_P(MethodSessionTest, EveryLayerKeepsItsOwnK) {
  const auto h2o = method(model.config().global_layers() > 1 ? "h2o:k=30,20" : "h2o:k=30");
  Session session = read(*h2o);
  session.set_method(h2o).step(tokens[100]);
  const auto& state = static_cast<const HeavyHitters&>(*session.state(*h2o));
  EXPECT_EQ(state.kept(0), 30);
  for (int layer = 1; layer < model.config().global_layers(); ++layer) EXPECT_EQ(state.kept(layer), 20);
}

TEST_P(MethodSessionTest, H2ORefusesAContextReadWithoutIt) {
  const auto h2o = method("h2o:k=20");
  Session session = read(*method("dense"));
  EXPECT_THROW(session.prepare(*h2o), Error);
  EXPECT_THROW(session.set_method(h2o).step(tokens[100]), Error);
  EXPECT_EQ(session.tokens(), 100);
}

TEST_P(MethodSessionTest, AMethodThatIsSetDecodesByWhatHasBeenRestored) {
  const auto h2o = method("h2o:k=20");
  Session whole = read(*h2o);
  const std::vector<std::byte> saved = whole.state(*h2o)->save();
  Session session = read(*method("dense"));
  session.set_method(h2o);
  session.restore(*h2o, saved);
  EXPECT_EQ(session.step(tokens[100]), whole.set_method(h2o).step(tokens[100]));
}

TEST_P(MethodSessionTest, AnAppendThatFailsLeavesTheMethodSetWithNothingKept) {
  const auto h2o = method("h2o:k=20");
  Session session(model, arena, options);
  session.set_method(h2o);
  const auto stop = [](std::int64_t, std::int64_t) { fail("stopped"); };
  EXPECT_THROW(session.append(std::span(tokens).first(100), stop), Error);
  EXPECT_EQ(session.tokens(), options.chunk_tokens);
  EXPECT_EQ(static_cast<const HeavyHitters&>(*session.state(*h2o)).kept(0), 0);
  EXPECT_THROW(session.step(tokens[24]), Error);
  EXPECT_NO_THROW(session.set_method(method("dense")).step(tokens[24]));
}

INSTANTIATE_TEST_SUITE_P(Models, MethodSessionTest, ::testing::Values("llama", "smollm3", "gpt_oss", "gemma4"),
                         test::by_value);

}  // namespace
}  // namespace hayloft::runtime
