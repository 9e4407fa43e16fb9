#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/kernels/states.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// The steps of prefill's attention between its matrix products. Its rows are (token, query head of the group) pairs,
// row m of a KV head is token m / g, query head m % g; a warp takes a row.
namespace hayloft::gpu::cuda {

inline constexpr int kSoftmaxWarps = 8;
inline constexpr int kSoftmaxThreads = kSoftmaxWarps * kWarp;
inline constexpr int kTileKeys = 1024;                    // keys of a tile, held in a warp's registers
inline constexpr int kVectors = kTileKeys / (4 * kWarp);  // of four keys, per lane

// Weights of the tile reach matrix products in f16, as multiples of exp(s - max) by this: what an f16 can hold then
// begins at 2^-40 of the largest weight instead of 2^-25, and a million small weights count.
inline constexpr float kWeightScale = 32768;

// The queries and their AttentionStates, in device memory, for all tokens of the operation.
struct CausalStates {
  f16* q = nullptr;           // [Hkv][rows][d], times a power of two that makes good use of f16's range
  float* scale = nullptr;     // f32 [Hkv][rows]: scores are products times this
  float* weighted = nullptr;  // f32 [Hkv][rows][d]
  float* max = nullptr;       // f32 [Hkv][rows]
  float* sum = nullptr;       // f32 [Hkv][rows]; weighted and sum are kWeightScale times as large as the state's
  std::int64_t rows = 0;      // per KV head: T * g
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
static __global__ void __launch_bounds__(kSoftmaxThreads)
    begin_causal(const CausalStates states, const float* q, float score_scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kSoftmaxWarps + static_cast<int>(threadIdx.x) / kWarp;
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

// A block of rows against a tile of keys.
struct CausalTile {
  const float* products = nullptr;  // f32 [Hkv][rows][kTileKeys], q . k
  f16* weights = nullptr;           // likewise
  std::int64_t first_row = 0;       // of the block, in the states
  int rows = 0;
  int keys = 0;                // in the tile
  std::int64_t key = 0;        // the first one's position
  std::int64_t position = 0;   // of the block's first row
  std::int64_t window = 0;     // CausalWindow's
  std::int64_t sinks_end = 0;  // keys before this are seen whatever the window
};

__device__ inline int clamp_key(std::int64_t key, int keys) {
  return key < 0 ? 0 : key > keys ? keys : static_cast<int>(key);
}

// grid (rows / warps, Hkv). Online softmax: weights of the tile, under the maximum so far; the states' sums, and
// `weighted` brought down to a larger maximum, ready for the tile's weighted values to be added to it.
static __global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_tile(const CausalStates states, const CausalTile tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x) * kSoftmaxWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= tile.rows) return;
  const std::int64_t at = states.at(kv_head, tile.first_row + row);
  const std::int64_t in_tile = (static_cast<std::int64_t>(kv_head) * tile.rows + row) * kTileKeys;

  const std::int64_t own = tile.position + row / states.group - tile.key;  // the row's position, in the tile
  const int end = clamp_key(own + 1, tile.keys);
  const int begin = tile.window > 0 ? clamp_key(own + 1 - tile.window, tile.keys) : 0;
  const int sinks = clamp_key(tile.sinks_end - tile.key, tile.keys);
  const auto visible = [&](int key) { return key < end && (key >= begin || key < sinks); };

  const float scale = states.scale[at];
  float s[kVectors][4];
  float largest = -INFINITY;
  for (int v = 0; v < kVectors; ++v) {
    const int key = (v * kWarp + lane) * 4;
    float4 four{0, 0, 0, 0};
    if (key < tile.keys) four = *reinterpret_cast<const float4*>(tile.products + in_tile + key);
    s[v][0] = four.x * scale;
    s[v][1] = four.y * scale;
    s[v][2] = four.z * scale;
    s[v][3] = four.w * scale;
    for (int i = 0; i < 4; ++i) {
      if (visible(key + i)) largest = fmaxf(largest, s[v][i]);
    }
  }
  const float before = states.max[at];
  const float grown = fmaxf(before, warp_max(largest));
  float sum = 0;
  for (int v = 0; v < kVectors; ++v) {
    const int key = (v * kWarp + lane) * 4;
    if (key >= tile.keys) continue;
    unsigned weight[4];
    for (int i = 0; i < 4; ++i) {
      const f16 p = narrow(visible(key + i) ? fast_exp(s[v][i] - grown) * kWeightScale : 0.0f);
      sum += widen(p);  // what the product with V sees, so that the weights' roundings cancel where they agree
      weight[i] = p.bits;
    }
    *reinterpret_cast<uint2*>(tile.weights + in_tile + key) = {weight[0] | weight[1] << 16,
                                                               weight[2] | weight[3] << 16};
  }
  sum = warp_sum(sum);
  const float keep = rescale(before, grown);
  if (keep != 1) {
    const int d = states.head_dim;
    for (int i = lane; i < d; i += kWarp) states.weighted[at * d + i] *= keep;
  }
  warp_barrier();  // all lanes have read the maximum
  if (lane == 0) {
    states.max[at] = grown;
    states.sum[at] = states.sum[at] * keep + sum;
  }
}

// grid (rows / warps, Hkv). out f32 [T][Hq][d], divided by the sums unless `partial` [T][Hq] takes these. sinks:
// CacheView's.
static __global__ void __launch_bounds__(kSoftmaxThreads)
    finish_causal(const CausalStates states, const SoftmaxPart partial, const float* sinks, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kSoftmaxWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= states.rows) return;
  const int d = states.head_dim;
  const std::int64_t at = states.at(kv_head, row);
  float max = states.max[at], sum = states.sum[at], keep = 1;
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
