#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "offload/store/layout.h"

namespace hayloft::gpu::cuda {

// The memory that the device keeps for the columns of one block: for each KV head so many slots, each of which holds
// one run, which is a whole column or, of columns in planes, one plane.
struct CachedBlock {
  std::byte* base = nullptr;  // in device memory; null: nothing is kept
  std::int32_t slots = 0;     // of a KV head
};

// Says where things lie in a CachedBlock, at multiples of 16 bytes:
//   use   f32 [Hkv][runs]  how often each run was read, of which a step leaves 98%
//   slot  u16 [Hkv][runs]  which slot holds the run, from 1; 0: none
//   run   u16 [Hkv][slots] which run the slot holds, from 1; 0: none
//   data  [Hkv][slots]     a run's bytes as the block has them, then room for the scales or ranges of its column; of
//                          planes those of a component lie with its first
struct RunLayout {
  int kv_heads = 0;
  int runs = 0;  // of a KV head
  int block_tokens = 0;
  std::uint64_t run_bytes = 0;    // over a block
  std::uint64_t scale_bytes = 0;  // of a column over a block

  RunLayout() = default;
  explicit RunLayout(const offload::BlockLayout& layout)
      : kv_heads(layout.kv_heads),
        runs(layout.plane_bytes > 0 ? offload::plane_count * layout.head_dim : layout.head_dim),
        block_tokens(layout.block_tokens),
        run_bytes(layout.plane_bytes > 0 ? layout.plane_bytes : layout.column_bytes),
        scale_bytes(layout.scale_bytes) {}

  __host__ __device__ static std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 15) / 16 * 16; }
  __host__ __device__ std::uint64_t slot_bytes() const { return aligned(run_bytes + scale_bytes); }
  __host__ __device__ std::uint64_t use_bytes() const {
    return aligned(sizeof(float) * static_cast<std::uint64_t>(kv_heads) * static_cast<std::uint64_t>(runs));
  }
  __host__ __device__ std::uint64_t run_offset() const {  // of `run`
    return use_bytes() +
           aligned(sizeof(std::uint16_t) * static_cast<std::uint64_t>(kv_heads) * static_cast<std::uint64_t>(runs));
  }
  __host__ __device__ std::uint64_t data_offset(int slots) const {
    return run_offset() +
           aligned(sizeof(std::uint16_t) * static_cast<std::uint64_t>(kv_heads) * static_cast<std::uint64_t>(slots));
  }
  __host__ __device__ std::uint64_t bytes(int slots) const {
    return data_offset(slots) + static_cast<std::uint64_t>(kv_heads) * static_cast<std::uint64_t>(slots) * slot_bytes();
  }
  // From the base of a block with so many slots.
  __host__ __device__ std::uint64_t slot_offset(int slots, int kv_head, int slot) const {
    return data_offset(slots) + (static_cast<std::uint64_t>(kv_head) * static_cast<std::uint64_t>(slots) +
                                 static_cast<std::uint64_t>(slot)) *
                                    slot_bytes();
  }
};

// Says where a step takes the runs that it reads from, found by place_runs_of(): of each the bytes from the block's
// base to its slot, and in the low bits how the slot stands. 0: from the host, and it stays there.
inline constexpr std::uint32_t kHeld = 1;    // the slot holds the run
inline constexpr std::uint32_t kFilled = 2;  // whoever reads the run from the host writes it to the slot
// It has been fetched ahead, so many bytes behind where the columns of the block begin (RunPlaces::ahead).
inline constexpr std::uint32_t kFetched = 4;
inline constexpr std::uint32_t kPlaceFlags = 15;

struct RunPlaces {
  const CachedBlock* blocks = nullptr;    // [blocks], in device memory; null: nothing is kept
  const std::uint32_t* places = nullptr;  // [blocks][Hkv][reads], in the order in which runs are read
  int kv_heads = 0;
  int reads = 0;
  const std::byte* ahead = nullptr;  // in device memory; null: nothing has been fetched ahead
  std::uint64_t ahead_bytes = 0;     // of a block there

  __device__ const std::uint32_t* of(std::int64_t block, int kv_head) const {
    return places + (block * kv_heads + kv_head) * reads;
  }
};

}  // namespace hayloft::gpu::cuda
