#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/rows.cuh"
#include "gpu/cuda/kernels/states.cuh"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda/memory/device_store.h"

// The end of a decode step's attention: states of many parts of the sequence become one output.
namespace hayloft::gpu::cuda {

inline constexpr int kMergeWarps = 8;
inline constexpr int kMergeThreads = kMergeWarps * kWarp;
inline constexpr int kMergeAhead = 4;  // slots whose loads are under way together

// The mean of V over every token, SparQ's mean value, in the pieces it is kept in.
struct MeanValue {
  const float* alpha = nullptr;   // f32 [Hq]: y = alpha y + (1 - alpha) mean; null: y as it is
  const float* stored = nullptr;  // f32 [Hkv][d], the sum over the store; null: nothing there
  const float* tail = nullptr;    // f32 [Hkv][tail_parts][d], sums over kMeanRows rows each
  int tail_parts = 0;
  float tokens = 0;  // in store and tail
  int group = 1;
};

// A block per query head. Warp w adds up slots w, w + 8, ... in order, then the warps' sums are added in order. out f32
// [Hq][d], d up to `most`, divided by the sums unless `partial` takes these. sinks: CacheView's.
template <int most>
static __global__ void __launch_bounds__(kMergeThreads)
    merge_states(const States states, const MeanValue mean, const SoftmaxPart partial, const float* sinks, int d,
                 float* out) {
  __shared__ float scratch[kMergeWarps + 1];
  __shared__ float weighted[kMergeWarps][most];
  __shared__ float sums[kMergeWarps];
  constexpr int components = most / kWarp;  // per lane
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int head = static_cast<int>(blockIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(head) * states.slots;

  float max = -INFINITY;
  for (int slot = thread; slot < states.slots; slot += kMergeThreads) max = fmaxf(max, states.max[first + slot]);
  max = block_max(max, scratch);
  if (sinks) max = fmaxf(max, sinks[head]);

  float sum = sinks && warp == 0 ? rescale(sinks[head], max) : 0;
  float total[components] = {};
  for (int begin = warp; begin < states.slots; begin += kMergeAhead * kMergeWarps) {
    float maxima[kMergeAhead], weights[kMergeAhead], values[kMergeAhead][components];
    for (int u = 0; u < kMergeAhead; ++u) {
      const int slot = begin + u * kMergeWarps;
      if (slot >= states.slots) continue;
      maxima[u] = states.max[first + slot];
      weights[u] = states.sum[first + slot];
      for (int j = 0; j < components; ++j) {
        const int i = lane + j * kWarp;
        if (i < d) values[u][j] = states.weighted[(first + slot) * d + i];
      }
    }
    for (int u = 0; u < kMergeAhead; ++u) {
      if (begin + u * kMergeWarps >= states.slots) continue;
      const float factor = rescale(maxima[u], max);
      sum += weights[u] * factor;
      for (int j = 0; j < components; ++j) {
        if (lane + j * kWarp < d) total[j] += values[u][j] * factor;
      }
    }
  }
  for (int j = 0; j < components; ++j) weighted[warp][lane + j * kWarp] = total[j];
  if (lane == 0) sums[warp] = sum;
  __syncthreads();

  const auto finish = [&](int i) {
    if (i >= d) return;
    float y = 0;
    float all = 0;
    for (int w = 0; w < kMergeWarps; ++w) {
      y += weighted[w][i];
      all += sums[w];
    }
    if (partial.max) {
      out[static_cast<std::int64_t>(head) * d + i] = y;
      if (i == 0) {
        partial.max[head] = max;
        partial.sum[head] = all;
      }
      return;
    }
    y *= all == 0 ? 0.0f : 1 / all;
    if (mean.alpha) {
      const int kv_head = head / mean.group;
      float v = mean.stored ? mean.stored[kv_head * d + i] : 0.0f;
      for (int part = 0; part < mean.tail_parts; ++part) {
        v += mean.tail[(static_cast<std::int64_t>(kv_head) * mean.tail_parts + part) * d + i];
      }
      const float alpha = mean.alpha[head];
      y = alpha * y + (1 - alpha) * (mean.tokens > 0 ? v / mean.tokens : 0.0f);
    }
    out[static_cast<std::int64_t>(head) * d + i] = y;
  };
  for (int turn = 0; turn < most / kMergeThreads; ++turn) finish(thread + turn * kMergeThreads);
}

}  // namespace hayloft::gpu::cuda
