#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/kernels/states.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// The queries of prefill's attention and what they have gathered, which is carried from keys to keys. Rows are (token,
// query head of the group) pairs, row m of a KV head is token m / g, query head m % g; a warp takes a row here.
namespace hayloft::gpu::cuda {

inline constexpr int kStateWarps = 8;
inline constexpr int kStateThreads = kStateWarps * kWarp;

// Weights reach products in f16, as multiples of exp(s - max) by this: what an f16 can hold then begins at 2^-40 of
// the largest weight instead of 2^-25, and a million small weights count.
inline constexpr float kLog2OfWeightScale = 15;
inline constexpr float kWeightScale = 32768;

// In device memory, for all tokens of the operation.
struct CausalStates {
  f16* q = nullptr;           // [Hkv][rows][d], times a power of two that makes good use of f16's range
  float* scale = nullptr;     // f32 [Hkv][rows]: scores are products times this
  float* weighted = nullptr;  // f32 [Hkv][rows][d]
  float* max = nullptr;       // f32 [Hkv][rows], of products
  float* sum = nullptr;   // f32 [Hkv][rows]; weighted and sum are kWeightScale times as large as an AttentionState's
  std::int64_t rows = 0;  // per KV head: T * g
  int group = 0;
  int head_dim = 0;

  // Returns a row's index in the arrays above; and that of its query head in [T][Hq].
  __device__ std::int64_t at(int kv_head, std::int64_t row) const { return kv_head * rows + row; }
  __device__ std::int64_t query(int kv_heads, int kv_head, std::int64_t row) const {
    return (row / group * kv_heads + kv_head) * group + row % group;
  }
};

// A power of two that brings `largest` to [2^14, 2^15), and its inverse; one where that is not finite or next to zero.
struct PowerOfTwo {
  float factor;
  float inverse;
};
__device__ inline PowerOfTwo half_range(float largest) {
  const unsigned exponent = bits_of(largest) >> 23;
  if (exponent < 32 || exponent == 255) return {1, 1};
  return {float_of((268 - exponent) << 23), float_of((exponent - 14) << 23)};
}

// grid (rows / warps, Hkv). q f32 [T][Hq][d].
static __global__ void __launch_bounds__(kStateThreads)
    begin_causal(const CausalStates states, const float* q, float score_scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kStateWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= states.rows) return;
  const int d = states.head_dim;
  const std::int64_t at = states.at(kv_head, row);
  const float* const from = q + states.query(static_cast<int>(gridDim.y), kv_head, row) * d;
  float largest = 0;
  for (int i = lane; i < d; i += kWarp) largest = fmaxf(largest, fabsf(from[i]));
  const PowerOfTwo power = half_range(warp_max(largest));
  for (int i = lane; i < d; i += kWarp) {
    states.q[at * d + i] = narrow(from[i] * power.factor);
    states.weighted[at * d + i] = 0;
  }
  if (lane == 0) {
    states.scale[at] = power.inverse * score_scale;
    states.max[at] = -INFINITY;
    states.sum[at] = 0;
  }
}

// grid (rows / warps, Hkv). out f32 [T][Hq][d], divided by the sums unless `partial` [T][Hq] takes these. sinks:
// CacheView's.
static __global__ void __launch_bounds__(kStateThreads)
    finish_causal(const CausalStates states, const SoftmaxPart partial, const float* sinks, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kStateWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= states.rows) return;
  const int d = states.head_dim;
  const std::int64_t at = states.at(kv_head, row);
  float max = states.max[at] * states.scale[at], sum = states.sum[at], keep = 1;
  const std::int64_t query = states.query(static_cast<int>(gridDim.y), kv_head, row);
  if (sinks) {
    const float sink = sinks[kv_head * states.group + row % states.group];
    const float before = max;
    max = fmaxf(max, sink);
    keep = rescale(before, max);
    sum = sum * keep + rescale(sink, max) * kWeightScale;
  }
  const float scale = partial.max ? keep / kWeightScale : sum == 0 ? 0.0f : keep / sum;
  if (partial.max && lane == 0) {
    partial.max[query] = max;
    partial.sum[query] = sum / kWeightScale;
  }
  float* const to = out + query * d;
  for (int i = lane; i < d; i += kWarp) to[i] = states.weighted[at * d + i] * scale;
}

}  // namespace hayloft::gpu::cuda
