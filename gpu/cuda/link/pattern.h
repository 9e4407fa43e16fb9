#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hayloft::gpu::cuda {

inline constexpr int kLinkThreads = 256;  // per block, of every kernel but the chase

// Word `index` (of 4 bytes) of a pattern; no two neighbouring pieces of it are alike.
__device__ __host__ inline unsigned link_word(std::uint64_t index) {
  const auto x = static_cast<unsigned>(index) * 0x9e3779b1u + static_cast<unsigned>(index >> 32);
  return x ^ (x >> 15);
}

}  // namespace hayloft::gpu::cuda
