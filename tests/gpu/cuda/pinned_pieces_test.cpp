#include <algorithm>
#include <utility>

#include "tests/gpu/cuda/backends.h"

// Blocks that lie behind one another in memory, but were pinned by several calls, as those of an arena's chunks may be.
namespace hayloft::testing {
namespace {

using gpu::Link;
using offload::ColumnFormat;

// Pins a chunk in pieces.
class InPieces : public offload::ChunkListener {
 public:
  InPieces(std::shared_ptr<offload::ChunkListener> pins, std::uint64_t piece_bytes)
      : pins_(std::move(pins)), piece_bytes_(piece_bytes) {}

  void committed(std::byte* data, std::uint64_t bytes) override {
    for (std::uint64_t at = 0; at < bytes; at += piece_bytes_) {
      pins_->committed(data + at, std::min(piece_bytes_, bytes - at));
    }
  }
  void releasing(std::byte* data, std::uint64_t bytes) noexcept override {
    for (std::uint64_t at = 0; at < bytes; at += piece_bytes_) {
      pins_->releasing(data + at, std::min(piece_bytes_, bytes - at));
    }
  }

 private:
  const std::shared_ptr<offload::ChunkListener> pins_;
  const std::uint64_t piece_bytes_;
};

class PinnedPieces : public CudaTest {
 protected:
  // Of an arena, that a block of this shape takes.
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
  const gpu::Buffer q = upload(*cuda, random_query(8, 32, 1));
  const gpu::Buffer out = cuda->allocate(8 * 32 * sizeof(float), cuda->stream());
  const auto attended = [&](SharedCache& cache) {
    gpu::Attended what;
    what.ranges[0] = {0, 1040};
    cuda->attend(cache.on_cuda(), q.as<float>(), 8, what, out.as<float>(), cuda->stream());
    return download<float>(*cuda, out);
  };
  SharedCache whole(*cuda, shape);
  SharedCache cache(*cuda, shape, std::make_shared<InPieces>(cuda->pinning(), block_bytes(shape)));
  EXPECT_EQ(attended(cache), attended(whole));
}

}  // namespace
}  // namespace hayloft::testing
