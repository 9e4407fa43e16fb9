#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/select/group_rank.cuh"
#include "gpu/cuda/kernels/select/scan.h"
#include "gpu/cuda/kernels/warp.cuh"

// Makes one softmax of the partial ones of a query head.
namespace hayloft::gpu::cuda {

// Writes the softmaxes of `count` query heads of the batch from `first` on, at most `most`, always in the same order,
// by kSelectThreads threads. Contains barriers. scratch: shared [most][kSelectThreads / kWarp].
template <int most>
__device__ inline void normalise_heads(const Normalising& a, const PartialSoftmax& partials, std::int64_t first,
                                       int count, float* scratch) {
  constexpr float infinity = __builtin_inff();
  constexpr int warps = kSelectThreads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // Brings each head's values of the block together.
  const auto reduce = [&](float(&x)[most], const auto& of_warp, const auto& of_both) {
    HAYLOFT_UNROLL
    for (int h = 0; h < most; ++h) {
      const float own = of_warp(x[h]);
      if (lane == 0) scratch[h * warps + warp] = own;
    }
    __syncthreads();
    HAYLOFT_UNROLL
    for (int h = 0; h < most; ++h) {
      x[h] = scratch[h * warps];
      for (int w = 1; w < warps; ++w) x[h] = of_both(x[h], scratch[h * warps + w]);
    }
    __syncthreads();
  };
  const auto largest = [&](float(&x)[most]) {
    reduce(
        x, [](float own) { return warp_max(own); }, [](float one, float other) { return fmaxf(one, other); });
  };
  const auto sum_up = [&](float(&x)[most]) {
    reduce(
        x, [](float own) { return warp_sum(own); }, [](float one, float other) { return one + other; });
  };

  const std::int64_t chunks = a.store_chunks + a.tail_chunks, row = first * partials.stride;
  float max[most], reach[most], store[most], tail[most];
  HAYLOFT_UNROLL
  for (int h = 0; h < most; ++h) {
    max[h] = reach[h] = -infinity;
    store[h] = tail[h] = 0;
  }
  for (std::int64_t c = threadIdx.x; c < chunks; c += kSelectThreads) {
    HAYLOFT_UNROLL
    for (int h = 0; h < most; ++h) {
      if (h < count) {
        const float x = partials.max[row + h * partials.stride + c];
        max[h] = fmaxf(max[h], x);
        if (c < a.selectable) reach[h] = fmaxf(reach[h], x);
      }
    }
  }
  largest(max);
  largest(reach);
  HAYLOFT_UNROLL
  for (int h = 0; h < most; ++h) {
    if (a.sinks && h < count) max[h] = fmaxf(max[h], a.sinks[first + h]);
  }
  for (std::int64_t c = threadIdx.x; c < chunks; c += kSelectThreads) {
    HAYLOFT_UNROLL
    for (int h = 0; h < most; ++h) {
      if (h < count) {
        const std::int64_t at = row + h * partials.stride + c;
        const float x = partials.max[at];
        const float part = x == max[h] ? partials.sum[at] : partials.sum[at] * expf(x - max[h]);
        store[h] += c < a.store_chunks ? part : 0.0f;
        tail[h] += c < a.store_chunks ? 0.0f : part;
      }
    }
  }
  sum_up(store);
  sum_up(tail);
  HAYLOFT_UNROLL
  for (int h = 0; h < most; ++h) {
    if (static_cast<int>(threadIdx.x) != h || h >= count) continue;
    const std::int64_t head = first + h;
    const float outside = a.sinks ? tail[h] + expf(a.sinks[head] - max[h]) : tail[h];
    const float sum = store[h] + outside;
    const float by_max = a.ranked_by.max ? a.ranked_by.max[head] : max[h];
    const float by_sum = a.ranked_by.max ? a.ranked_by.sum[head] : sum;
    a.out[head] = {max[h], sum, outside, reach[h], by_max + log(static_cast<double>(by_sum))};
  }
}

}  // namespace hayloft::gpu::cuda
