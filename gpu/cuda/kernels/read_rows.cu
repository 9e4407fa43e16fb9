#include "gpu/cuda/memory/read_rows.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/quantised_rows.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kReadThreads = 256;
constexpr int kReadRows = 32;  // of a block

// Grid: (groups of 32 rows, heads). A thread turns eight levels at a time.
template <RowFormat format>
__global__ void __launch_bounds__(kReadThreads)
    read_rows_kernel(const DeviceStore store, const StoredRows from, f16* to) {
  const int d = store.head_dim;
  const int octets = d / 4;  // of a row
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (from.heads / store.kv_heads);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kReadRows;
  const int count = from.rows - first < kReadRows ? static_cast<int>(from.rows - first) : kReadRows;
  const std::int64_t first_row = head * from.rows + first;
  for (int i = static_cast<int>(threadIdx.x); i < count * octets; i += kReadThreads) {
    const int row = i / octets, octet = i % octets;
    std::int64_t position = from.begin + first + row;
    if (from.positions) {
      if (from.sizes && position >= from.sizes[head]) continue;
      position = from.positions[head * from.stride + position];
      if (store.reached(position)) continue;
    }
    const auto* const levels = reinterpret_cast<const unsigned char*>(from.data) + (first_row + row) * store.row_bytes;
    store16(to + (first_row + row) * 2 * d + octet * 8,
            read_octet<format>(levels, store.ranges_of(kv_head, store.range(position)), d, octet));
  }
}

}  // namespace

void read_rows(const DeviceStore& store, const StoredRows& from, f16* to, cudaStream_t stream) {
  const auto kernel =
      store.row_format == RowFormat::int8 ? read_rows_kernel<RowFormat::int8> : read_rows_kernel<RowFormat::int4>;
  const dim3 grid(blocks_for(from.rows, kReadRows), static_cast<unsigned>(from.heads));
  launch("read_rows", kernel, {grid, dim3(kReadThreads)}, stream, store, from, to);
}

}  // namespace hayloft::gpu::cuda
