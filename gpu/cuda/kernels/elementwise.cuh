#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/intrinsics.cuh"

// What the kernels that treat every element alike share.
namespace hayloft::gpu::cuda {

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t all_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float widen(float x) {
  return x;
}

}  // namespace hayloft::gpu::cuda
