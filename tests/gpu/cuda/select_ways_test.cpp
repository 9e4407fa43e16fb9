#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "offload/error.h"
#include "tests/gpu/cuda/select_fixture.h"

// Selection whatever way the columns come, under small budgets and at the edges: ties, zeros, empty stores.
namespace hayloft::testing {
namespace {

using gpu::Link;

TEST_F(CudaSelect, EqualScoresGoToTheSmallerPosition) {
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 16, .stored = 900, .tail = 4, .seed = 9, .key_scale = 0});
  gpu::SparqSelect args;
  args.rank = 4;
  args.k = 300;
  args.limit = 880;
  const Selection selection = select(*cuda, cache.on_cuda(), random_query(8, 16, 1), args);
  for (std::size_t i = 0; i < 600; ++i) ASSERT_EQ(selection.positions[i], static_cast<std::int32_t>(i % 300));
}

TEST_F(CudaSelect, TiesAmongDifferentScoresGoToTheSmallerPosition) {
  // One component of int4: 15 levels per scale, so that most scores are shared by several positions.
  SharedCache cache(*cuda, {.head_dim = 8, .block_tokens = 4096, .stored = 2000, .columns = ColumnFormat::int4});
  std::vector<float> q(8, 0.0f);
  q[3] = 1;
  gpu::SparqSelect args;
  args.rank = 1;
  args.limit = 2000;
  for (const int k : {1, 10, 100, 500, 1999}) {
    args.k = k;
    std::vector<std::int32_t> expected(2000);
    std::iota(expected.begin(), expected.end(), 0);
    const auto value = [&](std::int32_t t) { return cache.values().searched_key(0, t, 3); };
    std::stable_sort(expected.begin(), expected.end(),
                     [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
    expected.resize(static_cast<std::size_t>(k));
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(select(*cuda, cache.on_cuda(), q, args).positions, expected);
  }
}

TEST_F(CudaSelect, AQueryOfZerosSelectsTheFirstPositions) {
  SharedCache cache(*cuda, {.head_dim = 64, .stored = 256, .tail = 44});
  gpu::SparqSelect args;
  args.rank = 8;
  args.k = 30;
  args.limit = 256;
  const std::vector<float> zeros(2 * 64);
  const Selection selection = select(*cuda, cache.on_cuda(), zeros, args);
  for (std::int32_t i = 0; i < 30; ++i) EXPECT_EQ(selection.positions[static_cast<std::size_t>(i)], i);
  for (const float a : selection.alpha) EXPECT_NEAR(a, 74.0 / 300, 300 * eps);  // every position has the same share
}

TEST_F(CudaSelect, AQueryThatIsNotANumberStaysWithinTheLists) {
  SharedCache cache(*cuda, {.head_dim = 16, .stored = 300, .tail = 10});
  gpu::SparqSelect args;
  args.rank = 4;
  args.k = 50;
  args.limit = 290;
  const std::vector<float> nan(4 * 16, std::numeric_limits<float>::quiet_NaN());
  SharedCache theirs(*several_kernels, {.head_dim = 16, .stored = 300, .tail = 10});
  for (const Selection& selection :
       {select(*cuda, cache.on_cuda(), nan, args), select(*several_kernels, theirs.on_cuda(), nan, args)}) {
    for (std::int32_t i = 0; i < 50; ++i) EXPECT_EQ(selection.positions[static_cast<std::size_t>(i)], i);
  }
}

TEST_F(CudaSelect, AnEmptyStoreLeavesTheTailWithAllTheMass) {
  SharedCache cache(*cuda, {.head_dim = 64, .tail = 100});
  gpu::SparqSelect args;
  args.rank = 16;
  const Selection selection = select(*cuda, cache.on_cuda(), random_query(4, 64, 9), args);
  EXPECT_EQ(selection.alpha, std::vector<float>(4, 1.0f));
}

TEST_F(CudaSelect, EveryWayOverTheLinkAndThroughTheListsGivesTheSameBits) {
  std::vector<std::unique_ptr<gpu::Backend>> devices;
  devices.push_back(make_cuda({.short_list_keys = 0}));  // several kernels
  for (const Link link : {Link::copy, Link::both}) {
    for (const std::uint64_t least : {std::uint64_t{0}, std::uint64_t{1}, gpu::worthwhile_copy_bytes}) {
      devices.push_back(make_cuda({.link = link, .least_copy_bytes = least}));  // with the last it reads in place
    }
  }
  for (const ColumnFormat columns : all_formats) {
    for (const int block : {16, 256, 1024}) {
      SCOPED_TRACE(::testing::Message() << offload::name(columns) << " B=" << block);
      const CacheShape shape{
          .kv_heads = 3, .head_dim = 16, .block_tokens = block, .stored = 1500, .tail = 20, .columns = columns};
      const std::vector<float> q = random_query(6, 16, 11);
      gpu::SparqSelect args;
      args.rank = 6;
      args.k = 77;
      args.limit = 1400;
      SharedCache in_place(*cuda, shape);
      const Selection expected = select(*cuda, in_place.on_cuda(), q, args);
      for (const auto& device : devices) {
        SharedCache cache(*device, shape);
        expect_same(select(*device, cache.on_cuda(), q, args), expected);
      }
      SharedCache pageable(*cuda, shape, SharedCache::Host::pageable);
      expect_same(select(*cuda, pageable.on_cuda(), q, args), expected);
    }
  }
}

TEST_F(CudaSelect, ColumnsThatComeInSeveralTilesGiveTheSameBits) {
  // A staging tile of 256 f16 columns has room for 32768 tokens, half as many when they are staged: whole blocks of
  // 4096, or a part of the only one.
  for (const int block : {4096, 65536}) {
    const CacheShape shape{.head_dim = 256, .block_tokens = block, .stored = 33000};
    const std::vector<float> q = random_query(1, 256, 17);
    gpu::SparqSelect args;
    args.rank = 256;
    args.k = 200;
    args.limit = 33000;
    SharedCache in_place(*cuda, shape);
    const Selection expected = select(*cuda, in_place.on_cuda(), q, args);
    SharedCache pageable(*cuda, shape, SharedCache::Host::pageable);
    expect_same(select(*cuda, pageable.on_cuda(), q, args), expected);
    for (const Link link : {Link::copy, Link::both}) {
      const auto device = make_cuda({.link = link});
      SharedCache cache(*device, shape);
      expect_same(select(*device, cache.on_cuda(), q, args), expected);
    }
  }
}

TEST_F(CudaSelect, ASmallBudgetSelectsForAFewHeadsAtATime) {
  // The scores of a KV head take 1.3 MiB, a 64th of what the arena has of a GiB holds four.
  const auto small = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  expect_like_cpu(*small,
                  {{.kv_heads = 6, .head_dim = 8, .block_tokens = 4096, .stored = 20000, .tail = 20, .seed = 18},
                   16,
                   2,
                   60,
                   19990});
}

TEST_F(CudaSelect, ArgumentsOutOfRangeAreRefusedAsOnTheCpu) {
  SharedCache cache(*cuda, {.head_dim = 16, .stored = 100});
  const std::vector<float> q = random_query(2, 16, 19);
  const auto refused = [&](int rank, int k, std::int64_t limit) {
    gpu::SparqSelect args;
    args.rank = rank;
    args.k = k;
    args.limit = limit;
    EXPECT_THROW(select(*cuda, cache.on_cuda(), q, args), Error);
  };
  refused(0, 1, 10);
  refused(17, 1, 10);
  refused(4, 11, 10);
  refused(4, 1, 101);
}

TEST_F(CudaSelect, TheSameSelectionTwiceIsTheSameBits) {
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 32, .stored = 1200, .tail = 50});
  const std::vector<float> q = random_query(8, 32, 12);
  gpu::SparqSelect args;
  args.rank = 8;
  args.k = 100;
  args.limit = 1200;
  const Selection first = select(*cuda, cache.on_cuda(), q, args);
  expect_same(select(*cuda, cache.on_cuda(), q, args), first);
}

}  // namespace
}  // namespace hayloft::testing
