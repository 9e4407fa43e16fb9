#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "offload/half.h"
#include "offload/store/layout.h"
#include "offload/store/rows.h"

namespace hayloft::gpu::cuda {

// One layer of the store as kernels see it, passed by value. The blocks lie in pinned host memory that the device reads
// over the link; the table of their addresses, the value sums and the ranges of integer rows are in device memory.
// offload/store/layout.h says what lies where in a block; the fields are BlockLayout's.
struct DeviceStore {
  const std::byte* const* blocks = nullptr;  // [blocks] device-visible addresses; null where the device reaches none
  const std::uint64_t* serials = nullptr;    // [blocks], LayerView's; null where there are none
  const float* value_sum = nullptr;          // f32 [Hkv][d], sum of V over all tokens
  const float* spread = nullptr;             // f32 [Hkv][d], LayerView's; null but for columns in planes
  std::int64_t tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int block_shift = 0;  // log2 of B
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  offload::RowFormat row_format = offload::RowFormat::f16;
  std::uint64_t row_bytes = 0;
  // [Hkv][ranges_per_head][d], of integer rows only, for scattered rows would else bring theirs over the link: range i
  // is that of the tokens [i << range_shift, (i + 1) << range_shift). Aligned to 16 bytes.
  const offload::ChannelRange* ranges = nullptr;
  std::int64_t ranges_per_head = 0;
  int range_shift = 0;
  std::uint64_t head_bytes = 0;
  std::uint64_t columns_offset = 0;
  std::uint64_t column_bytes = 0;
  std::uint64_t plane_bytes = 0;
  std::uint64_t scales_offset = 0;
  std::uint64_t scale_bytes = 0;

  __host__ __device__ std::int64_t block_tokens() const { return std::int64_t{1} << block_shift; }
  __device__ const std::byte* head(std::int64_t block, int kv_head) const {
    return blocks[block] + static_cast<std::uint64_t>(kv_head) * head_bytes;
  }
  __device__ bool reached(std::int64_t position) const { return blocks[position >> block_shift] != nullptr; }
  __device__ const f16* row(int kv_head, std::int64_t position) const {  // [K | V], 2 d elements, where rows are f16
    const std::int64_t slot = position & (block_tokens() - 1);
    return reinterpret_cast<const f16*>(head(position >> block_shift, kv_head)) + slot * 2 * head_dim;
  }
  __device__ const std::byte* integer_row(int kv_head, std::int64_t position) const {  // of row_bytes
    const std::int64_t slot = position & (block_tokens() - 1);
    return head(position >> block_shift, kv_head) + static_cast<std::uint64_t>(slot) * row_bytes;
  }
  __device__ int range(std::int64_t position) const { return static_cast<int>(position >> range_shift); }
  __device__ const offload::ChannelRange* ranges_of(int kv_head, int range) const {  // [d]
    return ranges + (kv_head * ranges_per_head + range) * head_dim;
  }
  __device__ const std::byte* column(std::int64_t block, int kv_head, int component) const {
    return head(block, kv_head) + columns_offset + static_cast<std::uint64_t>(component) * column_bytes;
  }
  __device__ const f16* scales(std::int64_t block, int kv_head, int component) const {
    return reinterpret_cast<const f16*>(head(block, kv_head) + scales_offset +
                                        static_cast<std::uint64_t>(component) * scale_bytes);
  }
};

}  // namespace hayloft::gpu::cuda
