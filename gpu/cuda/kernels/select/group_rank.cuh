#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/select/top_positions.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// The score that positions of a KV head are ranked by, of its query heads' logits: one definition for all kernels that
// make keys of logits.
namespace hayloft::gpu::cuda {

// One query head's softmax over the store and the tail.
struct HeadSoftmax {
  float max;
  float sum;       // of exp(s - max)
  float outside;   // the tail's part of it
  float reach;     // the largest logit of what may be selected
  double log_sum;  // of exp(s)
};

// Computes what is taken off each of the group's logits: the log-sum-exp, less a number that the group shares. A
// position's score is the sum over the group of exp(s - log-sum-exp); all of a group are scaled by one factor that
// brings the largest near 1: the order stays, and nothing underflows only because what dominates lies outside the store
// or at or after the limit. offsets: shared [group]; a barrier must follow.
__device__ inline void group_offsets(const HeadSoftmax* heads, int group, float* offsets) {
  double top = -static_cast<double>(__builtin_inff());
  for (int h = 0; h < group; ++h) top = fmax(top, heads[h].reach - heads[h].log_sum);
  for (int h = threadIdx.x; h < group; h += static_cast<int>(blockDim.x)) {
    offsets[h] = static_cast<float>(heads[h].log_sum + top);
  }
}

// A query head's part of a position's score. exp is held at exp(-87), where f32 is about to run out of normal numbers,
// as on the CPU: ties there are ties everywhere.
__device__ inline float share_of(float logit, float offset) {
  const float x = logit - offset;
  return expf(x < -87 ? -87.0f : x);
}

// Writes a lane's eight keys of a chunk and the chunk's largest, and counts those of the first `live` by their top
// bits.
__device__ inline void keep_keys(const float (&score)[8], std::int64_t live, unsigned* keys, unsigned* chunk_max,
                                 unsigned* bins /* shared [kBins] */) {
  unsigned key[8], most = 0;
  for (int i = 0; i < 8; ++i) {
    key[i] = key_of(score[i]);
    if (i < live) {
      most = most > key[i] ? most : key[i];
      atomic_add(bins + (key[i] >> level_shift(0)), 1u);
    }
  }
  store16(keys, {key[0], key[1], key[2], key[3]});
  store16(keys + 4, {key[4], key[5], key[6], key[7]});
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const unsigned other = shuffle_xor(most, mask);
    most = most > other ? most : other;
  }
  if (threadIdx.x % kWarp == 0) *chunk_max = most;
}

}  // namespace hayloft::gpu::cuda
