#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gpu/make_backend.h"
#include "runtime/decode/prefill_attention.h"
#include "runtime/decode/session.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/temporary_folder.h"

// A model with recurrent layers: its states, however the tokens came.
namespace hayloft::runtime {
namespace {

class HybridTest : public ::testing::Test {
 protected:
  struct Read {
    std::vector<std::vector<float>> states;  // of the layers that have one
    std::vector<float> logits;               // behind the next token
  };

  Read in_chunks(std::span<const std::int32_t> tokens, int chunk) {
    Session session(model, arena, {.cache = {.block_tokens = 64, .window = 32}, .chunk_tokens = chunk});
    session.append(tokens);
    Read read;
    for (const offload::SnapshotTail& tail : session.cache().tails()) {
      if (!tail.state.empty()) read.states.push_back(tail.state);
    }
    read.logits = session.step(7);
    return read;
  }

  static std::vector<std::int32_t> some_tokens(std::size_t count) {
    std::mt19937 random(5);
    std::vector<std::int32_t> tokens(count);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 5120);
    return tokens;
  }

  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double apart = 0, largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      apart = std::max(apart, std::fabs(double{a[i]} - b[i]));
      largest = std::max(largest, std::fabs(double{a[i]}));
    }
    return apart / largest;
  }

  test::TemporaryFolder folder;
  std::filesystem::path path = test::write_hybrid_model(folder.path() / "model", {.layers = 8});
  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{path, *backend};
};

// Up to eight tokens are multiplied with matrices as one is: the states before the first layer that attends, whose sums
// go by tiles of queries, are the same to the bit. More tokens are summed in another order, and f32 rounds each of some
// hundred terms of a product by 2^-24 of it: what comes of that in eight layers stays far below 2^-10.
TEST_F(HybridTest, TheStateIsTheSameWhateverTheChunks) {
  const std::vector<std::int32_t> tokens = some_tokens(2100);
  const Read one = in_chunks(tokens, 1);
  ASSERT_EQ(one.states.size(), 6u);
  const Read seven = in_chunks(tokens, 7);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(seven.states[i], one.states[i]) << "to the bit, state " << i;
  for (const int chunk : {7, 64, 2048}) {
    const Read read = in_chunks(tokens, chunk);
    for (std::size_t i = 0; i < one.states.size(); ++i) {
      EXPECT_LT(difference(one.states[i], read.states[i]), 0x1p-10) << "chunks of " << chunk << ", state " << i;
    }
    EXPECT_LT(difference(one.logits, read.logits), 0x1p-10) << "chunks of " << chunk;
  }
}

TEST_F(HybridTest, AStateTakesNoMoreForMoreTokens) {
  const SessionOptions options{.cache = {.block_tokens = 64, .window = 32}, .chunk_tokens = 64};
  Session session(model, arena, options);
  session.append(some_tokens(400));
  const std::uint64_t states = state_bytes(model.config());
  EXPECT_EQ(states, 2u * 6 * sizeof(float) * (4 * 16 * 32 + 3 * (2 * 2 * 16 + 4 * 32)));
  const std::uint64_t before = session.cache().device_bytes();
  session.append(some_tokens(400));
  EXPECT_LE(session.cache().device_bytes(), before + 2 * 64 * 64 * 2 * 2) << "but for the tails of two layers";
}

TEST_F(HybridTest, WhatIsAppendedAndNotCommittedChangesNothing) {
  Session session(model, arena, {.cache = {.block_tokens = 64, .window = 32}});
  session.append(some_tokens(50));
  Cache cache = session.cache().fork();
  Workspace workspace;
  PrefillAttention exact;
  struct Full {};
  const std::vector<std::int32_t> more = {1, 2, 3};
  EXPECT_THROW(model.forward(cache, workspace, more, Want::last, exact, [](const float*) { throw Full(); }), Full);
  const auto before = session.cache().tails(), now = cache.tails();
  for (std::size_t layer = 0; layer < before.size(); ++layer) EXPECT_EQ(now[layer].state, before[layer].state);
}

}  // namespace
}  // namespace hayloft::runtime
