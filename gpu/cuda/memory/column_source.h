#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/memory/cached_block.h"
#include "gpu/cuda/memory/device_store.h"

namespace hayloft::gpu::cuda {

inline constexpr int kChunkTokens = 256;  // tokens of a partial softmax
inline std::int64_t chunks_of(std::int64_t tokens) {
  return (tokens + kChunkTokens - 1) / kChunkTokens;
}

// The source that columns are read from: the blocks of the store, or one long block into which the chosen columns of
// one KV head have been gathered. Offsets are in bytes. Every lane's tokens lie in one block because blocks have at
// least 16.
struct ColumnSource {
  const std::byte* const* blocks = nullptr;  // addresses; null: one block at `base`
  const std::byte* base = nullptr;
  std::int64_t first = 0;  // position of the first block's first token
  int block_shift = 0;     // log2 of tokens per block
  bool gathered = false;   // column j is the j-th chosen one, rather than component j of K
  std::uint64_t head_bytes = 0;
  std::uint64_t columns_offset = 0;
  std::uint64_t column_bytes = 0;
  std::uint64_t plane_bytes = 0;  // of one plane; 0 but for planes, of which those that are read are gathered
  std::uint64_t scales_offset = 0;
  std::uint64_t scale_bytes = 0;
  int scale_shift = 6;  // log2 of tokens per scale
  // Says which runs are read from the device instead, or are to be kept there; of blocks of kChunkTokens or more.
  RunPlaces cached;

  __device__ const std::byte* head(std::int64_t position, int kv_head) const {
    const std::byte* const own = blocks ? blocks[block(position)] : base;
    return own + static_cast<std::uint64_t>(kv_head) * head_bytes;
  }
  __device__ std::int64_t slot(std::int64_t position) const {
    return (position - first) & ((std::int64_t{1} << block_shift) - 1);
  }
  __device__ std::int64_t block(std::int64_t position) const { return (position - first) >> block_shift; }
};

// Returns the source that is a store, read where it lies.
inline ColumnSource columns_in_place(const DeviceStore& store) {
  ColumnSource source;
  source.blocks = store.blocks;
  source.block_shift = store.block_shift;
  source.head_bytes = store.head_bytes;
  source.columns_offset = store.columns_offset;
  source.column_bytes = store.column_bytes;
  source.plane_bytes = store.plane_bytes;
  source.scales_offset = store.scales_offset;
  source.scale_bytes = store.scale_bytes;
  source.scale_shift = std::countr_zero(
      static_cast<unsigned>(offload::tokens_per_scale(store.columns, static_cast<int>(store.block_tokens()))));
  return source;
}

}  // namespace hayloft::gpu::cuda
