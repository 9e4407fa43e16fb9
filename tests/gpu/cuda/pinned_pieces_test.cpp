#include <utility>

#include "tests/gpu/cuda/backends.h"
#include "tests/gpu/cuda/in_pieces.h"

// Blocks that lie behind one another in memory, but were pinned by several calls, as those of an arena's chunks may be,
// or of which some could not be pinned.
namespace hayloft::testing {
namespace {

using gpu::Link;
using offload::ColumnFormat;

class PinnedPieces : public CudaTest {
 protected:
  // Returns the bytes of an arena that a block of this shape takes.
  static std::uint64_t block_bytes(CacheShape shape) {
    shape.stored = shape.block_tokens;
    RandomCache cache(shape);
    return (cache.view().store.layout->block_bytes + offload::Arena::alignment - 1) / offload::Arena::alignment *
           offload::Arena::alignment;
  }

  // Positions and alphas of select_sparq, read in this way.
  std::pair<std::vector<std::int32_t>, std::vector<float>> selected(gpu::Backend& device, const gpu::CacheView& cache) {
    const int query_heads = 4 * cache.kv_heads;
    gpu::SparqSelect args;
    args.rank = 8;
    args.k = 50;
    args.limit = cache.store.tokens;
    const gpu::Buffer q = upload(device, random_query(query_heads, cache.head_dim, 1));
    const std::int64_t count = std::int64_t{cache.kv_heads} * args.k;
    const gpu::Buffer positions =
        device.allocate(static_cast<std::uint64_t>(count) * sizeof(std::int32_t), device.stream());
    const gpu::Buffer alpha = device.allocate(static_cast<std::uint64_t>(query_heads) * sizeof(float), device.stream());
    device.select_sparq(cache, q.as<float>(), query_heads, args, positions.as<std::int32_t>(), alpha.as<float>(),
                        device.stream());
    return {download<std::int32_t>(device, positions), download<float>(device, alpha)};
  }

  // Returns what attend() makes of all positions.
  std::vector<float> attended(SharedCache& cache, gpu::Backend* on = nullptr) {
    gpu::Backend& device = on ? *on : *cuda;
    const gpu::CacheView view = cache.on_cuda();
    const int query_heads = 4 * view.kv_heads;
    const gpu::Buffer q = upload(device, random_query(query_heads, view.head_dim, 1));
    const gpu::Buffer out = device.allocate(q.bytes(), device.stream());
    gpu::Attended what;
    what.ranges[0] = {0, view.tokens()};
    device.attend(view, q.as<float>(), query_heads, what, out.as<float>(), device.stream());
    return download<float>(device, out);
  }

  // Returns what attend_causal() makes of the newest eight.
  std::vector<float> read_causally(SharedCache& cache, gpu::Backend* on = nullptr) {
    gpu::Backend& device = on ? *on : *cuda;
    const gpu::CacheView view = cache.on_cuda();
    const int query_heads = 2 * view.kv_heads;
    const gpu::Buffer q = upload(device, normal(static_cast<std::size_t>(8 * query_heads * view.head_dim), 2));
    const gpu::Buffer out = device.allocate(q.bytes(), device.stream());
    device.attend_causal(view, q.as<float>(), 8, query_heads, {}, out.as<float>(), device.stream());
    return download<float>(device, out);
  }
};

TEST_F(PinnedPieces, ColumnsAreCopiedAcrossTheirBorders) {
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::int4}) {
    const CacheShape shape{.kv_heads = 2, .head_dim = 32, .stored = 1000, .tail = 40, .columns = columns};
    SharedCache whole(*cuda, shape);
    const auto expected = selected(*cuda, whole.on_cuda());
    for (const Link link : {Link::copy, Link::both}) {
      const auto device = make_cuda({.link = link});
      for (const std::uint64_t blocks : {1, 3}) {
        SharedCache cache(*device, shape, std::make_shared<InPieces>(device->pinning(), blocks * block_bytes(shape)));
        EXPECT_EQ(selected(*device, cache.on_cuda()), expected) << blocks << " blocks a piece";
      }
    }
  }
}

TEST_F(PinnedPieces, RowsAreStreamedAcrossTheirBorders) {
  const CacheShape shape{.kv_heads = 2, .head_dim = 32, .stored = 1000, .tail = 40};
  SharedCache whole(*cuda, shape);
  SharedCache cache(*cuda, shape, std::make_shared<InPieces>(cuda->pinning(), block_bytes(shape)));
  EXPECT_EQ(attended(cache), attended(whole));
}

// A block has 12 KiB: a piece ends within rows, within columns and between blocks.
constexpr std::uint64_t kPage = 4096;

TEST_F(PinnedPieces, ABorderWithinABlockChangesNothing) {
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::int8}) {
    const CacheShape shape{.kv_heads = 2, .head_dim = 40, .stored = 1000, .tail = 40, .columns = columns};
    SharedCache whole(*cuda, shape);
    const auto expected = selected(*cuda, whole.on_cuda());
    for (const Link link : {Link::sm, Link::copy, Link::both}) {
      const auto device = make_cuda({.link = link});
      SharedCache cache(*device, shape, std::make_shared<InPieces>(device->pinning(), kPage));
      EXPECT_EQ(selected(*device, cache.on_cuda()), expected);
      if (link != Link::sm) continue;  // rows know no difference
      EXPECT_EQ(attended(cache, device.get()), attended(whole));
    }
  }
}

TEST_F(PinnedPieces, WhatIsNotPinnedIsStagedAndTheRestIsNot) {
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::int4}) {
    const CacheShape shape{.kv_heads = 2, .head_dim = 32, .stored = 1600, .tail = 40, .columns = columns};
    SharedCache whole(*cuda, shape);
    const auto expected = selected(*cuda, whole.on_cuda());
    for (const Link link : {Link::sm, Link::copy, Link::both}) {
      const auto device = make_cuda({.link = link});
      // Stretches of a few blocks, and ones that end within a block.
      for (const std::uint64_t bytes : {6 * block_bytes(shape), 5 * block_bytes(shape) + kPage}) {
        SharedCache cache(*device, shape, std::make_shared<InPieces>(device->pinning(), bytes, 2));
        EXPECT_EQ(selected(*device, cache.on_cuda()), expected) << bytes;
        if (link != Link::sm) continue;  // rows know no difference
        EXPECT_EQ(attended(cache, device.get()), attended(whole)) << bytes;
        EXPECT_EQ(read_causally(cache, device.get()), read_causally(whole)) << bytes;
      }
    }
  }
}

TEST_F(PinnedPieces, ABlockIsWrittenAcrossThem) {
  const CacheShape shape{.kv_heads = 2, .head_dim = 32, .stored = 0, .tail = 64};
  SharedCache cache(*cuda, shape);
  const offload::BlockLayout layout({1, 2, 32, 64, ColumnFormat::f16});
  std::vector<std::byte> expected(layout.block_bytes);
  cpu->spill(cache.on_cpu(), 64, layout, expected.data(), {});
  const offload::Topology topology;
  for (const std::uint64_t one_in : {1, 2}) {
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{1} << 20;
    options.listener = std::make_shared<InPieces>(cuda->pinning(), 2 * kPage, one_in);
    offload::Arena arena(topology, options);
    const offload::Extent block = arena.allocate(layout.block_bytes);
    cuda->spill(cache.on_cuda(), 64, layout, block.data(), cuda->stream());
    cuda->synchronize(cuda->stream());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), block.data())) << one_in;
  }
}

}  // namespace
}  // namespace hayloft::testing
