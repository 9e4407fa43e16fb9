#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/select/group_rank.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// Makes alpha of a selection.
namespace hayloft::gpu::cuda {

// Holds logits f32 [batch Hq][stride] of the store's positions, or of those of its listed strips.
struct Logits {
  const float* logits = nullptr;
  std::int64_t stride = 0;
  int group = 0;
  Strips strips = {};

  // Returns how far behind its position a logit at or after the limit lies.
  __device__ std::int64_t shift(std::int64_t list, std::int64_t limit) const {
    return strips.listed ? strips.limits[list] - limit : 0;
  }
};

// Says of what a selection is a part.
struct Weighing {
  Logits in;
  const HeadSoftmax* heads = nullptr;  // [batch Hq]
  std::int64_t limit = 0;
  std::int64_t tokens = 0;
  float* alpha = nullptr;  // out, [batch Hq]; null: nothing is weighed
};

inline constexpr int kWeighedHeads = 4;  // query heads whose logits a thread asks for together

// Writes alpha of the query heads of a list: the softmax mass of the k selected positions, whose logits lie at `places`
// [k], of those at and after the limit, and of the tail. Rounding alone can take it past one. Each team of
// kSelectThreads threads of a block takes other heads, so that the order of a sum is the same for any number of teams.
// Contains barriers. sums: shared [kWeighedHeads][threads / kWarp].
template <int threads>
__device__ inline void weigh_list(const Weighing& a, int list, const std::int32_t* places, int k, float* sums) {
  constexpr int warps = threads / kWarp, team_warps = kSelectThreads / kWarp, teams = threads / kSelectThreads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int own = threadIdx.x % kSelectThreads, team = threadIdx.x / kSelectThreads, group = a.in.group;
  const std::int64_t first = static_cast<std::int64_t>(list) * group;
  const std::int64_t shift = a.in.shift(list, a.limit);
  for (int round = 0; round < group; round += teams * kWeighedHeads) {
    const float* logits[kWeighedHeads];
    float max[kWeighedHeads];
    double mass[kWeighedHeads];
    for (int j = 0; j < kWeighedHeads; ++j) {
      const int h = round + j * teams + team;
      logits[j] = h < group ? a.in.logits + (first + h) * a.in.stride : nullptr;
      max[j] = h < group ? a.heads[first + h].max : 0;
      mass[j] = 0;
    }
    const auto add = [&](std::int64_t place) {
      for (int j = 0; j < kWeighedHeads; ++j) {
        if (logits[j]) mass[j] += expf(logits[j][place] - max[j]);
      }
    };
    for (int i = own; i < k; i += kSelectThreads) add(places[i]);
    for (std::int64_t t = a.limit + own; t < a.tokens; t += kSelectThreads) add(t + shift);
    for (int j = 0; j < kWeighedHeads; ++j) {
      const float sum = warp_sum(static_cast<float>(mass[j]));
      if (lane == 0) sums[j * warps + warp] = sum;
    }
    __syncthreads();
    const int h = round + own * teams + team;
    if (own < kWeighedHeads && h < group) {
      const HeadSoftmax head = a.heads[first + h];
      float sum = 0;
      for (int w = 0; w < team_warps; ++w) sum += sums[own * warps + team * team_warps + w];
      const float share = (sum + head.outside) / head.sum;
      a.alpha[first + h] = share > 1 ? 1.0f : share;
    }
    __syncthreads();
  }
}

}  // namespace hayloft::gpu::cuda
