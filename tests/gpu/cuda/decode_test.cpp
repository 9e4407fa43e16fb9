#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "tests/gpu/cuda/decode_fixture.h"

// A decode step's attention on CUDA against the CPU backend.
namespace hayloft::testing {
namespace {

TEST_F(Decode, ListsAndRangesForEveryHeadDimensionAndGroup) {
  for (const int head_dim : {8, 64, 80, 96, 128, 256, 264, 512}) {
    for (int group = 1; group <= 17; group += head_dim > 256 ? 4 : 1) {
      SCOPED_TRACE(fmt::format("d = {}, g = {}", head_dim, group));
      const Heads heads{2, group, head_dim};
      SharedCache cache(*cuda,
                        {.kv_heads = 2, .head_dim = head_dim, .block_tokens = 32, .stored = 96, .tail = 13, .seed = 2});
      gpu::Attended what;
      what.lists = heads.kv_heads;
      what.k = 37;
      what.ranges[0] = {94, 109};  // from the store into the tail
      expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, what.k, 3));
    }
  }
}

TEST_F(Decode, ListsPerQueryHead) {
  for (const auto& [group, d] : {std::pair(1, 64), std::pair(3, 64), std::pair(16, 64), std::pair(3, 512)}) {
    for (const int k : {1, 33, 64}) {
      SCOPED_TRACE(fmt::format("g = {}, k = {}, d = {}", group, k, d));
      const Heads heads{2, group, d};
      SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 300, .tail = 5, .seed = 4});
      gpu::Attended what;
      what.lists = heads.query_heads();
      what.k = k;
      what.ranges[1] = {300, 305};
      expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, k, 5));
    }
  }
}

TEST_F(Decode, MoreQueryHeadsThanABlockHasRoomFor) {
  const Heads heads{1, 37, 64};
  SharedCache cache(*cuda, {.kv_heads = 1, .head_dim = 64, .block_tokens = 32, .stored = 64, .tail = 3, .seed = 6});
  gpu::Attended what;
  what.ranges[0] = {50, 67};
  expect_alike(*cuda, cache, heads, what);
  what.lists = heads.query_heads();
  what.k = 5;
  what.ranges[0] = {64, 67};
  expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, what.k, 7));
}

TEST_F(Decode, RangesInTheStoreInTheTailAndAcross) {
  const Heads heads{2, 4, 80};
  struct Ranges {
    gpu::Attended::Range first, second;
  };
  // The store's last block is ragged.
  for (const auto& [first, second] :
       {Ranges{{0, 150}, {}}, Ranges{{3, 7}, {90, 150}}, Ranges{{0, 40}, {139, 150}}, Ranges{{139, 139}, {140, 145}},
        Ranges{{16, 32}, {5, 6}}, Ranges{{1, 139}, {}}, Ranges{{149, 150}, {17, 138}}}) {
    SCOPED_TRACE(fmt::format("[{}, {}) and [{}, {})", first.begin, first.end, second.begin, second.end));
    SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 80, .block_tokens = 16, .stored = 139, .tail = 11, .seed = 8});
    gpu::Attended what;
    what.ranges[0] = first;
    what.ranges[1] = second;
    expect_alike(*cuda, cache, heads, what);
  }
}

TEST_F(Decode, ALayerWithoutStoreBeginsWhereItsTailDoes) {
  constexpr std::int64_t far = std::int64_t{5} << 30;  // no 32 bits hold it
  const Heads heads{2, 3, 96};
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 96, .tail = 70, .position = far, .seed = 9});
  gpu::Attended what;
  what.ranges[0] = {far, far + 2};
  what.ranges[1] = {far + 5, far + 70};
  expect_alike(*cuda, cache, heads, what);
  expect_alike(*cuda, cache, heads, what, {}, std::vector<float>(6, 0.5f));
}

TEST_F(Decode, AlphaMixesInTheMeanOfAllValues) {
  for (const int d : {128, 512}) {
    const Heads heads{2, 2, d};
    for (const std::int64_t stored : {0, 160}) {
      for (const std::int64_t tail : {0, 1, 64, 150}) {
        if (stored + tail == 0) continue;
        SCOPED_TRACE(fmt::format("d = {}, {} in the store, {} in the tail", d, stored, tail));
        SharedCache cache(
            *cuda, {.kv_heads = 2, .head_dim = d, .block_tokens = 32, .stored = stored, .tail = tail, .seed = 10});
        gpu::Attended what;
        what.ranges[0] = {stored + tail - 1, stored + tail};
        expect_alike(*cuda, cache, heads, what, {}, {1.0f, 0.25f, 0.0f, 0.75f});
      }
    }
  }
}

TEST_F(Decode, NothingAttendedIsZeroOrTheMean) {
  const Heads heads{2, 2, 64};
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 64, .block_tokens = 32, .stored = 64, .tail = 7, .seed = 11});
  gpu::Attended what;
  what.ranges[0] = {5, 5};
  const std::vector<float> q = random_query(4, 64, 12);
  EXPECT_EQ(on_cuda(*cuda, cache, q, 4, what, {}, {}), std::vector<float>(q.size(), 0.0f));
  what.lists = 2;
  EXPECT_EQ(on_cuda(*cuda, cache, q, 4, what, {}, {}), std::vector<float>(q.size(), 0.0f)) << "empty lists";
  what.lists = 0;
  expect_alike(*cuda, cache, heads, what, {}, {0.0f, 0.5f, 1.0f, 0.25f});
}

// All but 256 KiB of the budget is taken, so that buffers hold some 50 rows per head: ranges and lists take many
// chunks.
TEST_F(Decode, LongRangesAndStagedListsPassThroughSmallBuffers) {
  const Heads heads{2, 2, 64};
  const std::unique_ptr<gpu::Backend> small = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  const gpu::DeviceMemory memory = small->memory();
  const gpu::Buffer taken = small->allocate(memory.budget_bytes - memory.used_bytes - (256 << 10), small->stream());
  for (const SharedCache::Host host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
    SharedCache cache(*small, {.kv_heads = 2, .head_dim = 64, .block_tokens = 16, .stored = 400, .tail = 9, .seed = 13},
                      host);
    for (const int lists : {0, 2, 4}) {
      SCOPED_TRACE(fmt::format("{}, {} lists", host == SharedCache::Host::pinned ? "pinned" : "staged", lists));
      gpu::Attended what;
      what.lists = lists;
      what.k = lists > 0 ? 100 : 0;
      what.ranges[0] = {0, 30};
      what.ranges[1] = {90, 409};
      const std::vector<float> alpha{1.0f, 0.5f, 0.0f, 0.75f};
      expect_alike(*small, cache, heads, what, lists > 0 ? random_lists(cache, lists, 100, 14) : std::vector<int>(),
                   alpha);
    }
  }
}

TEST_F(Decode, RandomShapes) {
  for (std::uint32_t seed = 1; seed <= 24; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1u)); };
    const Heads heads{draw(1, 3), draw(1, 9), 8 * draw(1, 20)};
    const CacheShape shape{.kv_heads = heads.kv_heads,
                           .head_dim = heads.head_dim,
                           .block_tokens = 16 << draw(0, 3),
                           .stored = draw(0, 3) * draw(10, 70),
                           .tail = draw(1, 80),
                           .seed = seed};
    SharedCache cache(*cuda, shape, draw(0, 1) ? SharedCache::Host::pinned : SharedCache::Host::pageable);
    const std::int64_t tokens = cache.values().tokens();
    gpu::Attended what;
    if (shape.stored > 0) {
      what.lists = draw(0, 1) ? heads.kv_heads : heads.query_heads();
      what.k = draw(0, static_cast<int>(std::min<std::int64_t>(shape.stored, 70)));
    }
    const std::int64_t middle = draw(0, static_cast<int>(tokens));
    what.ranges[0] = {draw(0, static_cast<int>(middle)), middle};
    what.ranges[1] = {draw(static_cast<int>(middle), static_cast<int>(tokens)), tokens};
    const std::vector<float> alpha(draw(0, 1) ? static_cast<std::size_t>(heads.query_heads()) : 0, 0.25f);
    SCOPED_TRACE(
        fmt::format("seed {}: Hkv {}, g {}, d {}, {} + {} tokens in blocks of {}, {} lists of {}, [{}, {}), [{}, {})",
                    seed, heads.kv_heads, heads.group, heads.head_dim, shape.stored, shape.tail, shape.block_tokens,
                    what.lists, what.k, what.ranges[0].begin, middle, what.ranges[1].begin, tokens));
    // Positions that lists and ranges name twice count twice, on both sides.
    expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, what.k, seed), alpha);
  }
}

TEST_F(Decode, InfinitiesAndNaNsComeOutAsOnTheCpu) {
  constexpr f16 nan{0x7e00}, infinity{0x7c00}, minus_infinity{0xfc00};
  for (const f16 bad : {nan, infinity, minus_infinity}) {
    for (const int component : {3, 64 + 3}) {  // of K and of V
      SCOPED_TRACE(fmt::format("{:#x} in component {}", bad.bits, component));
      SharedCache cache(*cuda,
                        {.kv_heads = 2, .head_dim = 64, .block_tokens = 32, .stored = 32, .tail = 40, .seed = 15});
      put(cache, 1, 35, component, bad);
      const std::vector<float> q = random_query(4, 64, 16);
      gpu::Attended what;
      what.ranges[0] = {20, 72};
      const std::vector<float> expected = on_cpu(cache, q, 4, what, {}, {});
      const std::vector<float> actual = on_cuda(*cuda, cache, q, 4, what, {}, {});
      for (std::size_t i = 0; i < q.size(); ++i) {
        EXPECT_EQ(std::isnan(actual[i]), std::isnan(expected[i])) << i;
        EXPECT_EQ(std::isinf(actual[i]), std::isinf(expected[i])) << i;
        EXPECT_TRUE(std::isfinite(actual[i]) || i >= q.size() / 2) << "the other KV head's: " << i;
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
