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

// Loads four floats whose address is a multiple of 16.
__device__ inline void load_four(const float* from, float* to) {
  const uint4 bits = load16(from);
  to[0] = float_of(bits.x), to[1] = float_of(bits.y), to[2] = float_of(bits.z), to[3] = float_of(bits.w);
}

__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));  // never overflows: for x < 0 the sigmoid is e / (1 + e) instead of 1 / (1 + e)
  return (x < 0 ? e : 1.0f) / (1 + e);
}

}  // namespace hayloft::gpu::cuda
