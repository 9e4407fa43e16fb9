#include <fmt/format.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/gpu/cuda/decode_fixture.h"
#include "tests/gpu/cuda/in_pieces.h"
#include "tests/support/parameter_name.h"

// A decode step's attention over rows of integers, on CUDA against the CPU backend. Both attend to the same f16, to the
// bit, so that the bounds are those of rows in f16.
namespace hayloft::testing {
namespace {

using offload::RowFormat;

class IntegerRows : public Decode, public ::testing::WithParamInterface<RowFormat> {
 protected:
  static RowFormat rows() { return GetParam(); }
};

TEST_P(IntegerRows, ListsAndRangesForEveryHeadDimensionAndGroup) {
  for (const int head_dim : {8, 16, 64, 72, 80, 96, 128, 136, 192, 248, 256, 264, 512}) {
    for (const int group : {1, 4, 5, 9, 16}) {
      if (head_dim > 256 ? group > 9 : group == 9) continue;
      SCOPED_TRACE(fmt::format("d = {}, g = {}", head_dim, group));
      const Heads heads{2, group, head_dim};
      SharedCache cache(*cuda, {.kv_heads = 2,
                                .head_dim = head_dim,
                                .block_tokens = 32,
                                .stored = 96,
                                .tail = 13,
                                .seed = 2,
                                .rows = rows()});
      gpu::Attended what;
      what.lists = heads.kv_heads;
      what.k = 37;
      what.ranges[0] = {84, 109};  // from the store into the tail, in one tile
      expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, what.k, 3));
    }
  }
}

TEST_P(IntegerRows, ListsPerQueryHead) {
  for (const int group : {1, 3, 16}) {
    for (const int k : {1, 33, 64}) {
      SCOPED_TRACE(fmt::format("g = {}, k = {}", group, k));
      const Heads heads{2, group, 64};
      SharedCache cache(
          *cuda,
          {.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 300, .tail = 5, .seed = 4, .rows = rows()});
      gpu::Attended what;
      what.lists = heads.query_heads();
      what.k = k;
      what.ranges[1] = {300, 305};
      expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, k, 5));
    }
  }
}

TEST_P(IntegerRows, BlocksOfSeveralRanges) {
  const Heads heads{2, 2, 16};
  for (const auto host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
    SharedCache cache(*cuda,
                      {.kv_heads = 2,
                       .head_dim = 16,
                       .block_tokens = 2048,
                       .stored = 2 * 2048 + 1100,
                       .tail = 5,
                       .seed = 6,
                       .rows = rows()},
                      host);
    gpu::Attended what;
    what.lists = 4;
    what.k = 200;
    expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, what.k, 7));
    what = {};
    what.ranges[0] = {5, 1300};
    what.ranges[1] = {1500, 5201};
    expect_alike(*cuda, cache, heads, what, {}, {1.0f, 0.25f, 0.0f, 0.75f});
  }
}

TEST_P(IntegerRows, RangesInTheStoreInTheTailAndAcross) {
  const Heads heads{2, 4, 80};
  struct Ranges {
    gpu::Attended::Range first, second;
  };
  for (const auto& [first, second] : {Ranges{{0, 150}, {}}, Ranges{{3, 7}, {90, 150}}, Ranges{{139, 145}, {16, 32}},
                                      Ranges{{5, 6}, {138, 140}}, Ranges{{1, 139}, {}}}) {
    SCOPED_TRACE(fmt::format("[{}, {}) and [{}, {})", first.begin, first.end, second.begin, second.end));
    SharedCache cache(
        *cuda,
        {.kv_heads = 2, .head_dim = 80, .block_tokens = 16, .stored = 139, .tail = 11, .seed = 8, .rows = rows()});
    gpu::Attended what;
    what.ranges[0] = first;
    what.ranges[1] = second;
    expect_alike(*cuda, cache, heads, what);
  }
}

// All but 256 KiB of the budget is taken, so that buffers hold few rows per head: ranges and lists take many chunks, of
// blocks that the device reads in place, of others, and of some of both.
TEST_P(IntegerRows, PassThroughSmallBuffersFromMemoryOfEitherKind) {
  const Heads heads{2, 2, 64};
  const std::unique_ptr<gpu::Backend> small = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  const gpu::DeviceMemory memory = small->memory();
  const gpu::Buffer taken = small->allocate(memory.budget_bytes - memory.used_bytes - (256 << 10), small->stream());
  const auto in_part = std::make_shared<InPieces>(small->pinning(), 1 << 15, 2);
  for (const std::shared_ptr<offload::ChunkListener>& listener :
       {std::shared_ptr<offload::ChunkListener>(small->pinning()), std::shared_ptr<offload::ChunkListener>(),
        std::shared_ptr<offload::ChunkListener>(in_part)}) {
    SharedCache cache(
        *small,
        {.kv_heads = 2, .head_dim = 64, .block_tokens = 16, .stored = 400, .tail = 9, .seed = 13, .rows = rows()},
        listener);
    for (const int lists : {0, 2, 4}) {
      SCOPED_TRACE(fmt::format("{}, {} lists", listener ? listener == in_part ? "both" : "pinned" : "staged", lists));
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

TEST_P(IntegerRows, RandomShapes) {
  for (std::uint32_t seed = 1; seed <= 16; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1u)); };
    const Heads heads{draw(1, 3), draw(1, 9), 8 * draw(1, 32)};
    const CacheShape shape{.kv_heads = heads.kv_heads,
                           .head_dim = heads.head_dim,
                           .block_tokens = 16 << draw(0, 3),
                           .stored = draw(1, 3) * draw(10, 70),
                           .tail = draw(1, 80),
                           .seed = seed,
                           .rows = rows()};
    SharedCache cache(*cuda, shape, draw(0, 1) ? SharedCache::Host::pinned : SharedCache::Host::pageable);
    const std::int64_t tokens = cache.values().tokens();
    gpu::Attended what;
    what.lists = draw(0, 1) ? heads.kv_heads : heads.query_heads();
    what.k = draw(0, static_cast<int>(std::min<std::int64_t>(shape.stored, 70)));
    const std::int64_t middle = draw(0, static_cast<int>(tokens));
    what.ranges[0] = {draw(0, static_cast<int>(middle)), middle};
    what.ranges[1] = {draw(static_cast<int>(middle), static_cast<int>(tokens)), tokens};
    SCOPED_TRACE(fmt::format("seed {}: Hkv {}, g {}, d {}, {} + {} tokens in blocks of {}, {} lists of {}", seed,
                             heads.kv_heads, heads.group, heads.head_dim, shape.stored, shape.tail, shape.block_tokens,
                             what.lists, what.k));
    expect_alike(*cuda, cache, heads, what, random_lists(cache, what.lists, what.k, seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, IntegerRows, ::testing::Values(RowFormat::int8, RowFormat::int4),
                         [](const auto& format) { return std::string(offload::name(format.param)); });

}  // namespace
}  // namespace hayloft::testing
