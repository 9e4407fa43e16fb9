#include <cstring>

#include "offload/host/arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Blocks on their way out while other things go on, which no result on a device would show reliably.
namespace hayloft::testing {
namespace {

class SpillStream : public CudaTest {
 protected:
  static constexpr int heads = 2, d = 64, B = 64;
  static constexpr std::int64_t row = 2 * d;

  const offload::BlockLayout layout{{1, heads, d, B, offload::ColumnFormat::int8}};

  const offload::Topology topology;

  offload::ArenaOptions pinned() const {
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{16} << 20;
    options.listener = cuda->pinning();
    return options;
  }
  gpu::CacheView view(const f16* rows, std::int64_t tokens) const {
    gpu::CacheView cache;
    cache.kv_heads = heads;
    cache.head_dim = d;
    cache.tail = {const_cast<f16*>(rows), tokens, 0, tokens, 0};
    return cache;
  }
  static std::vector<f16> rows(std::int64_t tokens, std::uint32_t seed) {
    std::vector<f16> values(static_cast<std::size_t>(heads * tokens * row));
    const auto random = normal(values.size(), seed);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_f16(random[i]);
    return values;
  }
};

TEST_F(SpillStream, BlocksOfManyLayersTakeShapeOneAfterTheOtherWhicheverStreamIsAheadAndWhoeverSpills) {
  // Their image in device memory is the same for all, also for one that is spilled in the order of the computation.
  constexpr int blocks = 4;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    simt::reset(seed);
    offload::Arena arena(topology, pinned());
    std::vector<offload::Extent> written;
    std::vector<gpu::Buffer> tails;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      tails.push_back(upload(*cuda, rows(B, i)));
      written.push_back(arena.allocate(layout.block_bytes));
      const gpu::Stream stream = i % 2 == 0 ? cuda->spill_stream() : cuda->stream();
      cuda->order(cuda->stream(), stream);
      cuda->spill(view(tails.back().as<f16>(), B), B, layout, written.back().data(), stream);
    }
    cuda->synchronize(cuda->stream());
    cuda->synchronize(cuda->spill_stream());
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const std::vector<f16> tail = rows(B, i);
      std::vector<std::byte> expected(layout.block_bytes);
      cpu->spill(view(tail.data(), B), B, layout, expected.data(), {});
      ASSERT_EQ(std::memcmp(written[i].data(), expected.data(), expected.size()), 0) << "block " << i << ", " << seed;
    }
  }
}

TEST_F(SpillStream, WhatComputesDoesNotWaitForThem) {
  // The computation's own stream can be waited for while a block is still on its way: for some order of the streams
  // the memory that it goes to is then untouched.
  bool on_its_way = false;
  for (std::uint64_t seed = 1; seed <= 40 && !on_its_way; ++seed) {
    simt::reset(seed);
    offload::Arena arena(topology, pinned());
    const offload::Extent block = arena.allocate(layout.block_bytes);
    const gpu::Buffer tail = upload(*cuda, rows(B, 1));
    cuda->order(cuda->stream(), cuda->spill_stream());
    cuda->spill(view(tail.as<f16>(), B), B, layout, block.data(), cuda->spill_stream());
    const gpu::Buffer computed = upload(*cuda, std::vector<float>(100));
    cuda->synchronize(cuda->stream());
    const auto* bytes = reinterpret_cast<const volatile unsigned char*>(block.data());
    on_its_way = true;
    for (std::uint64_t i = 0; i < layout.block_bytes && on_its_way; ++i) on_its_way = bytes[i] == 0;
    cuda->synchronize(cuda->spill_stream());
  }
  EXPECT_TRUE(on_its_way);
}

}  // namespace
}  // namespace hayloft::testing
