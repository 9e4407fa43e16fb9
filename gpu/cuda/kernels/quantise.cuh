#pragma once

#include "gpu/cuda/kernels/intrinsics.cuh"

// Integer key columns, to the bit what offload/store/quantise.h says: that file has the definitions and their reasons.
namespace hayloft::gpu::cuda {

// The bits of |x|, infinity counting as the largest finite value and NaN as zero. As integers they are in the order of
// their values.
__device__ inline int finite_magnitude(f16 x) {
  const int magnitude = x.bits & 0x7fff;
  return magnitude > 0x7c00 ? 0 : min(magnitude, 0x7bff);
}

// Returns what is quantised in place of x: the largest finite value for infinity, +0 for NaN.
__device__ inline f16 finite(f16 x) {
  const bool number = (x.bits & 0x7fff) <= 0x7c00;
  return {static_cast<std::uint16_t>(finite_magnitude(x) | (number ? x.bits & 0x8000 : 0))};
}

// The largest of the warp's values, in every lane.
__device__ inline int warp_largest(int x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = max(x, shuffle_xor(x, mask));
  return x;
}

// The smallest f16 that is not less than m / level.
__device__ inline f16 scale_for(f16 m, int level) {
  const float quotient = widen(m) / static_cast<float>(level);
  f16 scale = narrow(quotient);
  if (widen(scale) < quotient) ++scale.bits;
  return scale;
}

__device__ inline int quantise(f16 x, f16 scale) {
  if (scale.bits == 0) return 0;
  return static_cast<int>(rintf(widen(finite(x)) / widen(scale)));
}

}  // namespace hayloft::gpu::cuda
