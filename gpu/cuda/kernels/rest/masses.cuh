#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/select/top_positions.cuh"
#include "gpu/cuda/kernels/warp.cuh"
#include "index/scan/rest_masses.h"

// Masses of the positions that a step does not attend to, made of the scores that its selection has kept, and the draw
// by them: index/scan/rest_masses.h has the same for the host. One pass over the scores makes the keys that the passes
// of top_positions.cuh take the largest of; nothing is sorted.
namespace hayloft::gpu::cuda {

inline constexpr int kRestThreads = kSelectThreads;
inline constexpr int kSumBlocks = 64;  // of a query head's masses, at most

__device__ inline double warp_sum_of(double x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
// As block_sum(). scratch: shared [kRestThreads / kWarp].
__device__ inline double block_sum_of(double x, double* scratch) {
  x = warp_sum_of(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kRestThreads / kWarp; ++i) sum += scratch[i];
  __syncthreads();
  return sum;
}

// The scores, and what makes masses of them.
struct RestScores {
  float* scores = nullptr;  // [Hq][stride]
  std::int64_t stride = 0;
  std::int64_t limit = 0;
  int group = 0;
  const index::LogitLine* lines = nullptr;  // [Hq]
  const float* max = nullptr;               // [Hq] of the softmax of what is attended exactly
  const float* sum = nullptr;
  bool draws = false;
  std::uint64_t key = 0;

  // ln of the sum that masses are in proportion to, for a draw in steps of 1/16 (runtime/attention/rest_estimate.h).
  __device__ float log_sum(std::int64_t head) const { return max[head] + logf(sum[head]); }
  __device__ float reference(std::int64_t head) const {
    const float exact = log_sum(head);
    return draws ? floorf(exact * 16 + 0.5f) / 16 : exact;
  }
  // exp(slope s + offset - reference), at most e^60; 0 of what is attended. `from` is reference - offset.
  __device__ static float mass(float score, float slope, float from) {
    if (score == -__builtin_inff()) return 0;
    const float x = slope * score - from;
    return expf(x < -87 ? -87.0f : 60 < x ? 60.0f : x);
  }
};

__device__ inline float drawn_number_of(std::uint64_t key, std::int64_t position) {
  unsigned x = static_cast<unsigned>(position) * 0x9e3779b1u + static_cast<unsigned>(key);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13) ^ static_cast<unsigned>(key >> 32)) * 0xc2b2ae35u;
  x ^= x >> 16;
  return (static_cast<float>(static_cast<int>(x >> 9)) + 0.5f) * 0x1p-23f;
}

// Takes what is attended, positions [Hkv][k], out of the scores. Grid: query heads.
static __global__ __launch_bounds__(kRestThreads) void forget_attended(RestScores in, const std::int32_t* positions,
                                                                       int k) {
  const std::int64_t h = blockIdx.x;
  positions += h / in.group * k;
  for (int i = threadIdx.x; i < k; i += kRestThreads) in.scores[h * in.stride + positions[i]] = -__builtin_inff();
}

// Sums of the masses of each query head and of their squares, in parts [Hq][kSumBlocks]. Grid: (parts, query heads).
static __global__ __launch_bounds__(kRestThreads) void sum_masses(RestScores in, double* sums, double* squares) {
  __shared__ double scratch[kRestThreads / kWarp];
  const std::int64_t h = blockIdx.y;
  const float slope = in.lines[h].slope, from = in.reference(h) - in.lines[h].offset;
  double sum = 0, square = 0;
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kRestThreads + threadIdx.x; t < in.limit;
       t += static_cast<std::int64_t>(gridDim.x) * kRestThreads) {
    const double x = RestScores::mass(in.scores[h * in.stride + t], slope, from);
    sum += x;
    square += x * x;
  }
  sum = block_sum_of(sum, scratch);
  square = block_sum_of(square, scratch);
  if (threadIdx.x != 0) return;
  sums[h * kSumBlocks + blockIdx.x] = sum;
  squares[h * kSumBlocks + blockIdx.x] = square;
}

// Makes a key of every position of [0, limit): its mass, of all query heads of the KV head, over its random number; 0
// where it has no mass or none that is a number. Writes besides the largest key of each chunk and the histogram of the
// top bits. Grid: some blocks, KV heads. Dynamic shared memory: f32 [2][group].
static __global__ __launch_bounds__(kRestThreads) void rank_masses(RestScores in, unsigned* keys,
                                                                   unsigned* key_chunk_max, std::int64_t chunk_stride,
                                                                   unsigned* histogram) {
  __shared__ unsigned bins[kBins];
  float* const slopes = reinterpret_cast<float*>(dynamic_shared());
  float* const from = slopes + in.group;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t list = blockIdx.y, first = list * in.group;
  for (int h = threadIdx.x; h < in.group; h += kRestThreads) {
    slopes[h] = in.lines[first + h].slope;
    from[h] = in.reference(first + h) - in.lines[first + h].offset;
  }
  clear_bins(bins);
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kRestThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kRestThreads / kWarp) + warp;
       chunk * kChunkKeys < in.limit; chunk += warps) {
    const std::int64_t position = chunk * kChunkKeys + lane * 8;
    float p[8] = {};
    for (int h = 0; h < in.group; ++h) {
      const float* s = in.scores + (first + h) * in.stride + position;
      const uint4 low = load16(s), high = load16(s + 4);
      const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      for (int i = 0; i < 8; ++i) p[i] += RestScores::mass(float_of(words[i]), slopes[h], from[h]);
    }
    unsigned key[8], most = 0;
    for (int i = 0; i < 8; ++i) {
      const float rank = p[i] / drawn_number_of(in.key, position + i);
      key[i] = rank > 0 ? key_of(rank) : 0;
      if (position + i < in.limit) {
        most = most > key[i] ? most : key[i];
        atomic_add(bins + (key[i] >> level_shift(0)), 1u);
      }
    }
    unsigned* to = keys + list * in.stride + position;
    store16(to, {key[0], key[1], key[2], key[3]});
    store16(to + 4, {key[4], key[5], key[6], key[7]});
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const unsigned other = shuffle_xor(most, mask);
      most = most > other ? most : other;
    }
    if (lane == 0) key_chunk_max[list * chunk_stride + chunk] = most;
  }
  merge_bins(bins, histogram + list * kBins);
}

// The draw of each list, of which `positions` are the largest `found` keys: one more than `count`, the last of which is
// the threshold and left out, or all there are. The chance of each, 0 of what is left out, and the weight that its
// value has with each query head, mass / chance, in proportion to the sums themselves. Grid: KV heads. Dynamic shared
// memory: f32 [3][group].
static __global__ __launch_bounds__(kRestThreads) void finish_draw(RestScores in, const unsigned* keys,
                                                                   const std::int32_t* positions, int found, int count,
                                                                   float* chances /* [Hkv][found] */,
                                                                   float* weights /* [Hq][found] */) {
  __shared__ unsigned candidates, least, after;
  float* const slopes = reinterpret_cast<float*>(dynamic_shared());
  float* const from = slopes + in.group;
  float* const factors = from + in.group;
  const std::int64_t list = blockIdx.x, first = list * in.group;
  positions += list * found;
  keys += list * in.stride;
  chances += list * found;
  weights += first * found;
  for (int h = threadIdx.x; h < in.group; h += kRestThreads) {
    const float reference = in.reference(first + h);
    slopes[h] = in.lines[first + h].slope;
    from[h] = reference - in.lines[first + h].offset;
    factors[h] = expf(reference - in.log_sum(first + h));
  }
  if (threadIdx.x == 0) {
    candidates = 0;
    least = 0xffffffffu;
    after = 0xffffffffu;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < found; i += kRestThreads) {
    const unsigned key = keys[positions[i]];
    if (key == 0) continue;
    atomic_add(&candidates, 1u);
    atomic_min(&least, key);
  }
  __syncthreads();
  const bool cut = candidates > static_cast<unsigned>(count);
  for (int i = threadIdx.x; cut && i < found; i += kRestThreads) {
    if (keys[positions[i]] == least) atomic_min(&after, static_cast<unsigned>(found - 1 - i));
  }
  __syncthreads();
  const int worst = cut ? found - 1 - static_cast<int>(after) : -1;
  const float threshold = cut ? float_of(least & 0x7fffffffu) : 0.0f;
  for (int i = threadIdx.x; i < found; i += kRestThreads) {
    const float* const scores = in.scores + first * in.stride + positions[i];
    float p = 0;
    for (int h = 0; h < in.group; ++h) p += RestScores::mass(scores[h * in.stride], slopes[h], from[h]);
    const bool drawn = i != worst && keys[positions[i]] != 0;
    const float chance = !drawn ? 0.0f : p >= threshold ? 1.0f : p / threshold;
    chances[i] = chance;
    for (int h = 0; h < in.group; ++h) {
      const float mass = RestScores::mass(scores[h * in.stride], slopes[h], from[h]) * factors[h];
      weights[static_cast<std::int64_t>(h) * found + i] = drawn ? mass / chance : 0.0f;
    }
  }
}

}  // namespace hayloft::gpu::cuda
