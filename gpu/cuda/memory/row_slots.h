#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace hayloft::gpu::cuda {

inline constexpr int kRowWays = 8;  // slots in which a row may lie

// Places for rows in device memory, in sets of kRowWays; each KV head has sets of its own.
struct RowSlots {
  // u64 [Hkv][sets][kRowWays]: which row a slot holds, 0: none. A row's number is its block's serial, times the rows of
  // a block, plus which of them it is, all heads counted.
  std::uint64_t* rows = nullptr;
  std::int32_t* used = nullptr;     // [Hkv][sets][kRowWays]: the use that read it last, of which later ones are smaller
  std::uint32_t* wanted = nullptr;  // [Hkv][sets]: zero between operations
  std::byte* data = nullptr;        // [Hkv][sets][kRowWays] of row_bytes
  std::uint32_t sets = 0;           // of a KV head, a power of two
  std::uint64_t row_bytes = 0;      // a multiple of 8
};

// Says where an operation takes the rows of its lists from, found by place_rows(): of each the number of its slot times
// four, and in the low bits how that stands, as of the columns (cached_block.h). 0: from the host, and it stays there.
struct RowPlaces {
  const std::uint32_t* places = nullptr;  // [lists][k]; null: there are none
  std::byte* data = nullptr;              // RowSlots'
  std::uint64_t row_bytes = 0;

  __device__ std::byte* slot(std::uint32_t place) const {
    return data + static_cast<std::uint64_t>(place / 4) * row_bytes;
  }
};

}  // namespace hayloft::gpu::cuda
