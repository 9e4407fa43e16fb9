#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/intrinsics.cuh"

// Shared by the kernels that treat every element alike.
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

__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));  // never overflows: for x < 0 the sigmoid is e / (1 + e) instead of 1 / (1 + e)
  return (x < 0 ? e : 1.0f) / (1 + e);
}

}  // namespace hayloft::gpu::cuda
