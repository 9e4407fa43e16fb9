#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/intrinsics.cuh"

namespace hayloft::gpu::cuda {

// The attention of each query head over each of `slots` parts of the sequence: gpu/cpu/attention.h's
// AttentionState, many of them. f32, in device memory.
struct States {
  float* weighted = nullptr;  // [Hq][slots][d]
  float* max = nullptr;       // [Hq][slots]
  float* sum = nullptr;       // [Hq][slots]
  int slots = 0;
};

// The factor that moves a sum of exp(s - from) to a sum of exp(s - to); `to` is at least `from`. One for a part that
// has seen nothing while the other has seen nothing either.
__device__ inline float rescale(float from, float to) {
  return from == to ? 1.0f : expf(from - to);
}

}  // namespace hayloft::gpu::cuda
