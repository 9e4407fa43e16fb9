#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/cuda/context.cuh"

// What the verbs that treat every element alike share.
namespace hayloft::gpu::cuda {

inline constexpr int kStridedThreads = 256;

// Enough blocks to fill the device a few times over; a kernel walks the items in strides of all_threads().
inline Shape strided(const Context& context, std::int64_t items) {
  const std::int64_t blocks = (items + kStridedThreads - 1) / kStridedThreads;
  const std::int64_t most = std::int64_t{16} * context.multiprocessors;
  return {dim3(static_cast<unsigned>(std::min(blocks, most))), dim3(kStridedThreads)};
}
__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t all_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float widen(float x) {
  return x;
}

// Calls body with a typed null pointer that stands for the element type: `body(static_cast<const f16*>(nullptr))`.
template <class Body>
void with_type(DType type, const Body& body) {
  switch (type) {
    case DType::f32:
      return body(static_cast<const float*>(nullptr));
    case DType::f16:
      return body(static_cast<const f16*>(nullptr));
    case DType::bf16:
      return body(static_cast<const bf16*>(nullptr));
    case DType::packed:  // no such matrix comes here (Backend::multiplies_packed)
      break;
  }
}

}  // namespace hayloft::gpu::cuda
