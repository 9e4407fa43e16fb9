#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/select/strips.h"
#include "gpu/cuda/kernels/warp.cuh"

// The k largest of many 32-bit keys per list, positions ascending, ties to the smaller position; nothing is sorted and
// nothing depends on the order in which blocks run. A radix threshold: a histogram of the keys' top 11 bits tells which
// bin holds the k-th largest, two more passes refine that bin by 11 and 10 bits. The last of them also keeps what each
// block has found, of which the one that writes makes what lies above the threshold and at it before its own chunks.
// Every pass asks each chunk's largest key first and so reads only chunks that can matter: with k = 1024 of 1M, a
// fourth of them or less.
namespace hayloft::gpu::cuda {

inline constexpr int kSelectThreads = 256;
inline constexpr int kChunkKeys = 256;  // of one warp, 8 per lane
inline constexpr int kBins = 2048;
inline constexpr int kLevels = 3;
inline constexpr int kLastBins = 1024;  // of the last level

__host__ __device__ constexpr int level_bits(int level) {
  return level == 2 ? 10 : 11;
}
__host__ __device__ constexpr int level_shift(int level) {  // the bits below those of the level
  return level == 0 ? 21 : level == 1 ? 10 : 0;
}
static_assert(kLastBins == 1 << level_bits(kLevels - 1));

// An order of floats as unsigned integers; both zeros are the same, NaN is less than everything.
__device__ inline unsigned key_of(float score) {
  if (score != score) return 0;
  const unsigned bits = bits_of(score + 0.0f);  // -0 becomes +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The known part of a list's threshold: its leading bits, and how many of the keys that start with them are selected.
struct Cut {
  unsigned prefix;
  unsigned remaining;
};

// Keys of one list that are selected: above the threshold, and at it.
struct Tally {
  unsigned above;
  unsigned at;
};

// Keys u32 [lists][stride], of which [0, limit) count, or [0, strips.limits) where there are such; the rest of the last
// chunk may be anything.
struct Keys {
  const unsigned* keys = nullptr;
  const unsigned* chunk_max = nullptr;  // [lists][chunk_stride]
  std::int64_t stride = 0;
  std::int64_t chunk_stride = 0;
  std::int64_t limit = 0;
  Strips strips = {};
  std::int32_t* places = nullptr;  // out, [lists][k], of the selected keys; null: they are the positions

  __device__ std::int64_t end(int list) const { return strips.listed ? strips.limits[list] : limit; }
  __device__ std::int64_t chunks(int list) const { return (end(list) + kChunkKeys - 1) / kChunkKeys; }
};

// The lane's 8 keys of a chunk; those that do not count as 0, which is never above a threshold. `live` says how many
// do.
__device__ inline int load_keys(const Keys& list, int row, std::int64_t chunk, unsigned (&key)[8]) {
  const std::int64_t position = chunk * kChunkKeys + (threadIdx.x % kWarp) * 8;
  const unsigned* from = list.keys + row * list.stride + position;
  const uint4 low = load16(from), high = load16(from + 4);
  key[0] = low.x, key[1] = low.y, key[2] = low.z, key[3] = low.w;
  key[4] = high.x, key[5] = high.y, key[6] = high.z, key[7] = high.w;
  const std::int64_t live = list.end(row) - position;
  return live < 0 ? 0 : live < 8 ? static_cast<int>(live) : 8;
}

// Sum over the lanes before this one.
__device__ inline unsigned warp_prefix(unsigned x) {
  unsigned inclusive = x;
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const unsigned below = shuffle_up(inclusive, delta);
    if (static_cast<int>(threadIdx.x) % kWarp >= delta) inclusive += below;
  }
  return inclusive - x;
}

// Sum of x over the threads before this one; `total` over all of them. scratch: shared [threads / kWarp].
template <int threads>
__device__ inline unsigned block_prefix(unsigned x, unsigned* scratch, unsigned& total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned before_in_warp = warp_prefix(x);
  if (lane == kWarp - 1) scratch[warp] = before_in_warp + x;
  __syncthreads();
  unsigned before = 0;
  total = 0;
  for (int w = 0; w < threads / kWarp; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return before + before_in_warp;
}

// Finds the bin of a level's histogram that holds the last selected key, by all threads of a block; one of them writes
// the list's cut, known to that level. scratch: shared [threads / kWarp].
template <int threads>
__device__ inline void narrow(const unsigned* bins, int level, Cut before, unsigned* scratch, Cut& cut) {
  const int each = (1 << level_bits(level)) / threads;
  const int top = (1 << level_bits(level)) - 1 - static_cast<int>(threadIdx.x) * each;  // this thread's, downwards
  unsigned count = 0;
  for (int i = 0; i < each; ++i) count += bins[top - i];
  unsigned total;
  unsigned above = block_prefix<threads>(count, scratch, total);
  if (above >= before.remaining || above + count < before.remaining) return;
  int bin = top;
  while (above + bins[bin] < before.remaining) above += bins[bin--];
  cut = {before.prefix << level_bits(level) | static_cast<unsigned>(bin), before.remaining - above};
}

__device__ inline void clear_bins(unsigned* bins /* shared [kBins] */) {
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) bins[i] = 0;
  __syncthreads();
}
__device__ inline void merge_bins(const unsigned* bins, unsigned* histogram) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) {
    if (bins[i] != 0) atomic_add(histogram + i, bins[i]);
  }
}

}  // namespace hayloft::gpu::cuda
