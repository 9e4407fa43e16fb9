#include <cstdint>

#include "offload/error.h"
#include "tests/gpu/cuda/select_fixture.h"

// Selection by bit planes: as many of each component as pay, out of blocks of every size, whatever way they come.
namespace hayloft::testing {
namespace {

using gpu::Link;
using index::ComponentOrder;

class CudaSelectPlanes : public CudaSelect {
 protected:
  static SelectCase planes(const CacheShape& shape, int group, int bits, int k = 20) {
    SelectCase c{shape, group};
    c.cache.columns = ColumnFormat::planes;
    c.bits = bits;
    c.k = k;
    c.order = ComponentOrder::qk;
    return c;
  }
};

TEST_F(CudaSelectPlanes, EveryGroupAndRuleSelectsWhatTheCpuSelects) {
  for (int group = 1; group <= 17; ++group) {
    for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
      SelectCase c =
          planes({.kv_heads = 2, .head_dim = 32, .block_tokens = 256, .stored = 700, .tail = 30, .seed = 3}, group, 20);
      c.limit = 690;
      c.rule = rule;
      expect_like_cpu(c);
    }
  }
}

TEST_F(CudaSelectPlanes, EveryHeadDimensionIsReadInAnyNumberOfPlanes) {
  for (const int d : {8, 64, 80, 128, 256, 512}) {
    for (const int bits : {1, 5, 16, 32, 33, 100, 4 * d, 4 * d + 7}) {
      expect_like_cpu(
          planes({.kv_heads = 2, .head_dim = d, .block_tokens = 256, .stored = 300, .tail = 5, .seed = 4}, 2, bits));
    }
  }
}

TEST_F(CudaSelectPlanes, BlocksOfEverySizeAreReadToTheirLastToken) {
  for (const int block : {16, 32, 64, 128, 256, 1024, 4096}) {
    for (const std::int64_t stored : {1, 15, 999, 2049, 5000}) {
      const CacheShape shape{.kv_heads = 2, .head_dim = 16, .block_tokens = block, .stored = stored, .tail = 9};
      expect_like_cpu(planes(shape, 4, 21, static_cast<int>(std::min<std::int64_t>(stored, 33))));
    }
  }
}

TEST_F(CudaSelectPlanes, WholeComponentsAreOrderedByQueryAndSpread) {
  for (const int rank : {1, 8, 16}) {
    SelectCase c = planes({.head_dim = 64, .block_tokens = 512, .stored = 900, .tail = 9, .seed = 6}, 4, 0);
    c.rank = rank;
    expect_like_cpu(c);
  }
}

// With one query head, or logits that are summed, and weights that do not depend on the order of a sum, the order of
// positions is that of the CPU's numbers to the last bit.
TEST_F(CudaSelectPlanes, ScoresAreTheCpusToTheBit) {
  for (const int block : {16, 128, 256, 1024}) {
    for (const int bits : {2, 7, 24, 70}) {
      const int group = bits % 2 == 0 ? 1 : 3;
      const CacheShape shape{.kv_heads = 2,
                             .head_dim = 32,
                             .block_tokens = block,
                             .stored = 5000,
                             .tail = 9,
                             .seed = static_cast<std::uint32_t>(bits),
                             .columns = ColumnFormat::planes};
      SharedCache cache(*cuda, shape);
      const std::vector<float> q = random_query(2 * group, 32, 7);
      for (const int k : {1, 10, 500, 3001, 4999}) {
        SelectCase c = planes(shape, group, bits, k);
        c.rule = GroupRule::logits;
        c.temperature = index::Temperature::head_dim;
        const Selection actual = select(*cuda, cache.on_cuda(), q, c.args());
        const Selection expected = select(*cpu, cache.on_cpu(), q, c.args());
        EXPECT_EQ(actual.positions, expected.positions) << group << " " << bits << " " << k;
        EXPECT_TRUE(near(actual.alpha, expected.alpha, 0, 300 * eps));
      }
    }
  }
}

TEST_F(CudaSelectPlanes, EveryWayOverTheLinkGivesTheSameBits) {
  std::vector<std::unique_ptr<gpu::Backend>> devices;
  for (const Link link : {Link::copy, Link::both}) devices.push_back(make_cuda({.link = link}));
  for (const int block : {16, 256, 2048}) {
    const CacheShape shape{.kv_heads = 3, .head_dim = 16, .block_tokens = block, .stored = 4500, .tail = 20};
    const SelectCase c = planes(shape, 2, 19, 77);
    const std::vector<float> q = random_query(6, 16, 11);
    SharedCache in_place(*cuda, c.cache);
    const Selection expected = select(*cuda, in_place.on_cuda(), q, c.args());
    for (const auto& device : devices) {
      SharedCache cache(*device, c.cache);
      expect_same(select(*device, cache.on_cuda(), q, c.args()), expected);
    }
    SharedCache pageable(*cuda, c.cache, SharedCache::Host::pageable);
    expect_same(select(*cuda, pageable.on_cuda(), q, c.args()), expected);
  }
}

TEST_F(CudaSelectPlanes, PlanesThatComeInSeveralTilesGiveTheSameBits) {
  // A staging tile of all 1024 planes has room for 65536 tokens and their ranges less than twice, half as many when
  // they are staged.
  const CacheShape shape{.head_dim = 256, .block_tokens = 4096, .stored = 70000};
  const SelectCase c = planes(shape, 1, 1024, 200);
  const std::vector<float> q = random_query(1, 256, 17);
  SharedCache in_place(*cuda, c.cache);
  const Selection expected = select(*cuda, in_place.on_cuda(), q, c.args());
  SharedCache pageable(*cuda, c.cache, SharedCache::Host::pageable);
  expect_same(select(*cuda, pageable.on_cuda(), q, c.args()), expected);
  const auto device = make_cuda({.link = Link::copy});
  SharedCache cache(*device, c.cache);
  expect_same(select(*device, cache.on_cuda(), q, c.args()), expected);
}

TEST_F(CudaSelectPlanes, QueriesOfZerosAndOfNoNumbersSelectTheFirstPositions) {
  SelectCase c = planes({.head_dim = 16, .stored = 300, .tail = 10}, 4, 9, 50);
  SharedCache cache(*cuda, c.cache);
  for (const float x : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
    const Selection selection = select(*cuda, cache.on_cuda(), std::vector<float>(4 * 16, x), c.args());
    for (std::int32_t i = 0; i < 50; ++i) EXPECT_EQ(selection.positions[static_cast<std::size_t>(i)], i);
  }
}

TEST_F(CudaSelectPlanes, ColumnsThatAreNotPlanesAreRefusedAsOnTheCpu) {
  SharedCache cache(*cuda, {.head_dim = 16, .stored = 100});
  const std::vector<float> q = random_query(2, 16, 19);
  gpu::SparqSelect bits;
  bits.bits = 8;
  bits.limit = 100;
  gpu::SparqSelect by_spread = bits;
  by_spread.bits = 0;
  by_spread.rank = 4;
  by_spread.order = ComponentOrder::qk;
  for (const gpu::SparqSelect& args : {bits, by_spread}) {
    EXPECT_THROW(select(*cuda, cache.on_cuda(), q, args), Error);
    EXPECT_THROW(select(*cpu, cache.on_cpu(), q, args), Error);
  }
}

}  // namespace
}  // namespace hayloft::testing
