#include <gtest/gtest.h>

#include "runtime/cache/cache.h"

// Tests how much room the newest tokens of a layer are given.
namespace hayloft::runtime {
namespace {

// Makes Llama-3-8B's configuration, whose layers are global, or all see so many tokens back.
ModelConfig llama_3_8b(std::int64_t window) {
  ModelConfig config;
  config.layers = 32;
  config.query_heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.sliding_window.assign(32, window);
  return config;
}

constexpr std::uint64_t slot_bytes = std::uint64_t{32} * 8 * 4 * 128;  // of all layers and heads
constexpr std::int64_t context = std::int64_t{128} << 10;

TEST(TailSlots, OfGlobalLayersHaveRoomForABlockTheWindowAndWhatIsAppendedAtATime) {
  const CacheOptions options;
  const auto steady = static_cast<std::uint64_t>(options.block_tokens + options.window);
  EXPECT_EQ(tail_bytes(llama_3_8b(0), options, context, 2048), (steady + 2048) * slot_bytes);
  EXPECT_EQ(tail_bytes(llama_3_8b(0), options, context, 1), (steady + 1) * slot_bytes);
}

TEST(TailSlots, OfSlidingWindowsHaveAQuarterMore) {
  EXPECT_EQ(tail_bytes(llama_3_8b(4096), {}, context, 1), (4096 + 1024) * slot_bytes);
  EXPECT_EQ(tail_bytes(llama_3_8b(4096), {}, context, 2048), (4096 + 2048) * slot_bytes);
}

TEST(TailSlots, KeepAfterAPromptWhatDecodingWillNeed) {
  const CacheOptions options;
  const auto steady = static_cast<std::uint64_t>(options.block_tokens + options.window);
  EXPECT_EQ(kept_tail_bytes(llama_3_8b(0), options, context, 2048), (steady + 1) * slot_bytes);
  EXPECT_EQ(kept_tail_bytes(llama_3_8b(4096), options, context, 2048), (4096 + 1024) * slot_bytes);
  EXPECT_EQ(kept_tail_bytes(llama_3_8b(0), options, 3000, 2048), 4096 * slot_bytes) << "less than a block";
  // A few slots more than that are not worth moving all the others.
  EXPECT_EQ(kept_tail_bytes(llama_3_8b(0), options, context, 100), (steady + 100) * slot_bytes);
}

TEST(TailSlots, OfShortContextsHaveTwiceWhatIsLive) {
  EXPECT_EQ(tail_bytes(llama_3_8b(0), {}, 100, 100), 200 * slot_bytes);
}

}  // namespace
}  // namespace hayloft::runtime
