#pragma once

#include "gpu/cuda/kernels/quantise.cuh"

// Key columns in bit planes, to the bit what offload/store/planes.h says: that file has the definitions.
namespace hayloft::gpu::cuda {

// A component's range over a quantisation group.
struct KeyRange {
  f16 centre;
  f16 half;
};

__device__ inline KeyRange plane_range(float lo, float hi) {
  KeyRange range{narrow(0.5f * (lo + hi)), {0}};
  if (range.centre.bits == 0x8000) range.centre.bits = 0;
  const float centre = widen(range.centre);
  const float half = fmaxf(fabsf(hi - centre), fabsf(centre - lo));
  range.half = narrow(half);
  if (widen(range.half) < half) ++range.half.bits;
  return range;
}

// x is a key as finite() leaves it.
__device__ inline int plane_code(float x, KeyRange range) {
  if (range.half.bits == 0) return 8;
  const float t = (x - widen(range.centre)) / widen(range.half);
  return static_cast<int>(fminf(fmaxf(floorf(8 * t), -8.0f), 7.0f)) + 8;
}

}  // namespace hayloft::gpu::cuda
