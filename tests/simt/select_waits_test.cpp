#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Tests who waits for whom when positions are selected: what no result can show.
namespace hayloft::testing {
namespace {

class SelectWaits : public CudaTest {
 protected:
  // Waits of the host during one select_sparq, of a backend that reads columns so.
  std::int64_t waits(const gpu::LinkChoice& link, SharedCache::Host host,
                     offload::ColumnFormat columns = offload::ColumnFormat::f16) {
    const auto device = make_cuda({.link = link});
    SharedCache cache(*device, {.kv_heads = 2, .head_dim = 32, .stored = 1000, .tail = 40, .columns = columns}, host);
    const gpu::Buffer q = upload(*device, random_query(8, 32, 1));
    const gpu::Buffer positions = device->allocate(2 * 50 * sizeof(std::int32_t), device->stream());
    const gpu::Buffer alpha = device->allocate(8 * sizeof(float), device->stream());
    gpu::SparqSelect args;
    args.rank = 8;
    args.k = 50;
    args.limit = 1000;
    const std::int64_t before = simt::host_waits();
    device->select_sparq(cache.on_cuda(), q.as<float>(), 8, args, positions.as<std::int32_t>(), alpha.as<float>(),
                         device->stream());
    const std::int64_t waited = simt::host_waits() - before;
    device->synchronize(device->stream());  // the cache must outlive what reads it
    return waited;
  }
};

TEST_F(SelectWaits, SparqReadingPinnedColumnsInPlaceNeverGoesThroughTheHost) {
  EXPECT_EQ(waits(gpu::Link::sm, SharedCache::Host::pinned), 0);
}

TEST_F(SelectWaits, TheCopyEngineNeedsToBeToldTheComponents) {
  EXPECT_GT(waits(gpu::Link::copy, SharedCache::Host::pinned), 0);
  EXPECT_GT(waits(gpu::Link::sm, SharedCache::Host::pageable), 0);
}

TEST_F(SelectWaits, ColumnsOfEveryFormatComeTheirOwnWay) {
  gpu::LinkChoice link;
  link.int4 = gpu::Link::copy;
  EXPECT_EQ(waits(link, SharedCache::Host::pinned, offload::ColumnFormat::f16), 0);
  EXPECT_EQ(waits(link, SharedCache::Host::pinned, offload::ColumnFormat::int8), 0);
  EXPECT_GT(waits(link, SharedCache::Host::pinned, offload::ColumnFormat::int4), 0);
}

}  // namespace
}  // namespace hayloft::testing
