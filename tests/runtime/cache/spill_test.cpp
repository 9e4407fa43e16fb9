#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "gpu/cpu/cpu_backend.h"
#include "offload/error.h"
#include "runtime/decode/session.h"

// Tests when full blocks leave for host memory, and what becomes of them when the step that filled them fails.
namespace hayloft::runtime {
namespace {

using Events = std::vector<std::string>;

// Notes what concerns spilling, in order; fails where told to.
class Watched : public gpu::CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  gpu::Stream spill_stream() override { return {this}; }  // told apart from the stream that computes
  void order(gpu::Stream before, gpu::Stream after) override {
    if (before.handle != this && after.handle == this) events.push_back("spills wait");
  }
  void synchronize(gpu::Stream stream) override {
    if (stream.handle == this) events.push_back("host waits");
    CpuBackend::synchronize(stream);
  }
  void append(const gpu::CacheView& cache, const float* k, const float* v, int T, gpu::Stream stream) override {
    events.push_back("append " + std::to_string(cache.layer));
    if (cache.layer == fails_in_layer) fail("device memory is exhausted");
    CpuBackend::append(cache, k, v, T, stream);
  }
  void spill(const gpu::CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
             gpu::Stream stream) override {
    events.push_back("spill " + std::to_string(cache.layer) + (stream.handle == this ? "" : " as computed"));
    CpuBackend::spill(cache, tokens, layout, block, stream);
  }

  Events events;
  int fails_in_layer = -1;
};

class SpillTest : public ::testing::Test {
 protected:
  SpillTest() {
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.chunk_tokens = 24;
  }

  static std::vector<std::int32_t> tokens(int n) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 1);
    return ids;
  }

  offload::Topology topology;
  offload::Threads threads{2};
  Watched backend{threads};
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models/llama", backend};
  SessionOptions options;
};

TEST_F(SpillTest, ABlockLeavesAsSoonAsItsLayerHasFilledItAndIsWaitedForOnceAtTheEnd) {
  Session session(model, arena, options);
  session.append(tokens(23));
  backend.events.clear();
  session.step(1);  // the 24th token fills a block beyond the window
  Events expected;
  for (int layer = 0; layer < model.config().layers; ++layer) {
    const std::string number = std::to_string(layer);
    expected.insert(expected.end(), {"append " + number, "spills wait", "spill " + number});
  }
  expected.push_back("host waits");
  EXPECT_EQ(backend.events, expected);
  EXPECT_EQ(session.cache().store().layer(0).tokens, 16);
}

TEST_F(SpillTest, AStepThatFillsNoBlockWaitsForNone) {
  Session session(model, arena, options);
  session.append(tokens(10));
  backend.events.clear();
  session.step(1);
  for (const std::string& event : backend.events) EXPECT_EQ(event.rfind("append", 0), 0u) << event;
}

TEST_F(SpillTest, AStepThatFailsHasWaitedForItsBlocksAndGivesTheirMemoryBack) {
  Session session(model, arena, options);
  session.append(tokens(23));
  const std::uint64_t before = arena.used_bytes();
  backend.fails_in_layer = model.config().layers - 1;
  backend.events.clear();
  EXPECT_THROW(session.step(1), Error);
  EXPECT_EQ(backend.events.back(), "host waits");
  EXPECT_EQ(arena.used_bytes(), before);
  EXPECT_EQ(session.tokens(), 23);

  backend.fails_in_layer = -1;
  Session fresh(model, arena, options);
  fresh.append(tokens(23));
  EXPECT_EQ(session.step(1), fresh.step(1));
}

TEST_F(SpillTest, WhatWasAppendedAndNeverCommittedGoesWithTheNextAppend) {
  const ModelConfig& config = model.config();
  const std::size_t width = static_cast<std::size_t>(config.kv_heads * config.head_dim);
  const std::vector<float> x(24 * width, 1.0f);
  const auto read = [&](Cache& cache) {
    for (int layer = 0; layer < config.layers; ++layer) cache.append(layer, x.data(), x.data(), 24);
  };
  Cache cache(backend, arena, config, options.cache);
  read(cache);
  const std::uint64_t once = arena.used_bytes();
  read(cache);
  EXPECT_EQ(arena.used_bytes(), once);
  cache.commit();
  for (int layer = 0; layer < config.layers; ++layer) EXPECT_EQ(cache.store().layer(layer).tokens, 16);
}

}  // namespace
}  // namespace hayloft::runtime
