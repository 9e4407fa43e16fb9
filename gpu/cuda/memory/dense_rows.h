#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "offload/half.h"

namespace hayloft::gpu::cuda {

// Rows of consecutive positions in device memory, like the tail's: f16 [heads][capacity][2 d], slot `first` holds
// `position`.
struct DenseRows {
  const f16* rows = nullptr;
  std::int64_t capacity = 0;
  std::int64_t first = 0;
  std::int64_t position = 0;

  __device__ const f16* row(int head, std::int64_t at, int head_dim) const {
    return rows + (head * capacity + first + at - position) * 2 * head_dim;
  }
};

}  // namespace hayloft::gpu::cuda
