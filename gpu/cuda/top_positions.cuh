#pragma once

#include <cstdint>

#include "gpu/cuda/warp.cuh"

// The k largest of many 32-bit keys per list, positions ascending, ties to the smaller position; nothing is sorted and
// nothing depends on the order in which blocks run. A radix threshold: a histogram of the keys' top 11 bits tells which
// bin holds the k-th largest, two more passes refine that bin by 11 and 10 bits. Then one pass counts per chunk what is
// above the threshold and at it, and one writes. Every pass asks each chunk's largest key first and so reads only
// chunks that can matter: with k = 1024 of 1M, a fourth of them or less.
namespace hayloft::gpu::cuda {

inline constexpr int kSelectThreads = 256;
inline constexpr int kChunkKeys = 256;  // of one warp, 8 per lane
inline constexpr int kBins = 2048;
inline constexpr int kLevels = 3;

__host__ __device__ constexpr int level_bits(int level) {
  return level == 2 ? 10 : 11;
}
__host__ __device__ constexpr int level_shift(int level) {  // the bits below those of the level
  return level == 0 ? 21 : level == 1 ? 10 : 0;
}

// An order of floats as unsigned integers; both zeros are the same, NaN is less than everything.
__device__ inline unsigned key_of(float score) {
  if (score != score) return 0;
  const unsigned bits = bits_of(score + 0.0f);  // -0 becomes +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// What is known of a list's threshold: its leading bits, and how many of the keys that start with them are selected.
struct Cut {
  unsigned prefix;
  unsigned remaining;
};

// Keys of one list that are selected: above the threshold, and at it.
struct Tally {
  unsigned above;
  unsigned at;
};

// Keys u32 [lists][stride], of which [0, limit) count; the rest of the last chunk may be anything.
struct Keys {
  const unsigned* keys = nullptr;
  const unsigned* chunk_max = nullptr;  // [lists][chunk_stride]
  std::int64_t stride = 0;
  std::int64_t chunk_stride = 0;
  std::int64_t limit = 0;

  __device__ std::int64_t chunks() const { return (limit + kChunkKeys - 1) / kChunkKeys; }
};

// The lane's 8 keys of a chunk; those that do not count as 0, which is never above a threshold. `live` says how many
// do.
__device__ inline int load_keys(const Keys& list, int row, std::int64_t chunk, unsigned (&key)[8]) {
  const std::int64_t position = chunk * kChunkKeys + (threadIdx.x % kWarp) * 8;
  const unsigned* from = list.keys + row * list.stride + position;
  const uint4 low = load16(from), high = load16(from + 4);
  key[0] = low.x, key[1] = low.y, key[2] = low.z, key[3] = low.w;
  key[4] = high.x, key[5] = high.y, key[6] = high.z, key[7] = high.w;
  const std::int64_t live = list.limit - position;
  return live < 0 ? 0 : live < 8 ? static_cast<int>(live) : 8;
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

// Sum of x over the threads before this one; `total` over all of them. scratch: shared [kSelectThreads / kWarp].
__device__ inline unsigned block_prefix(unsigned x, unsigned* scratch, unsigned& total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  unsigned inclusive = x;
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const unsigned below = shuffle_up(inclusive, delta);
    if (lane >= delta) inclusive += below;
  }
  if (lane == kWarp - 1) scratch[warp] = inclusive;
  __syncthreads();
  unsigned before = 0;
  total = 0;
  for (int w = 0; w < kSelectThreads / kWarp; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return before + inclusive - x;
}

// One block per list: finds the bin that holds the last selected key, from the histogram [lists][kBins] of `level`.
// Level 0 begins with k; the others go on from the list's cut.
__global__ __launch_bounds__(kSelectThreads) void narrow_cut(const unsigned* histogram, int level, int k, Cut* cuts) {
  __shared__ unsigned scratch[kSelectThreads / kWarp];
  const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(k)} : cuts[blockIdx.x];
  __syncthreads();  // one thread is going to change it
  const unsigned* bins = histogram + static_cast<std::int64_t>(blockIdx.x) * kBins;
  const int each = (1 << level_bits(level)) / kSelectThreads;
  const int top = (1 << level_bits(level)) - 1 - static_cast<int>(threadIdx.x) * each;  // this thread's, downwards
  unsigned count = 0;
  for (int i = 0; i < each; ++i) count += bins[top - i];
  unsigned total;
  unsigned above = block_prefix(count, scratch, total);
  if (above >= before.remaining || above + count < before.remaining) return;
  int bin = top;
  while (above + bins[bin] < before.remaining) above += bins[bin--];
  cuts[blockIdx.x] = {before.prefix << level_bits(level) | static_cast<unsigned>(bin), before.remaining - above};
}

// Histogram of `level` (1 or 2) over the keys that start with the cut's bits. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void refine_histogram(Keys list, int level, const Cut* cuts,
                                                                   unsigned* histogram) {
  __shared__ unsigned bins[kBins];
  clear_bins(bins);
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  const unsigned prefix = cuts[row].prefix;
  const int known = level_shift(level - 1);
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(); chunk += warps) {
    if (list.chunk_max[row * list.chunk_stride + chunk] >> known < prefix) continue;
    unsigned key[8];
    const int live = load_keys(list, row, chunk, key);
    for (int i = 0; i < 8; ++i) {
      if (i < live && key[i] >> known == prefix) {
        atomic_add(bins + (key[i] >> level_shift(level) & ((1u << level_bits(level)) - 1)), 1u);
      }
    }
  }
  merge_bins(bins, histogram + static_cast<std::int64_t>(row) * kBins);
}

// Per chunk, what lies above the threshold and at it. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void tally_chunks(Keys list, const Cut* cuts, Tally* tallies) {
  const int row = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned threshold = cuts[row].prefix;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(); chunk += warps) {
    unsigned counts = 0;  // at most 256 of each kind in a chunk: `above` in the upper half of the word
    if (list.chunk_max[row * list.chunk_stride + chunk] >= threshold) {
      unsigned key[8];
      const int live = load_keys(list, row, chunk, key);
      for (int i = 0; i < 8; ++i) {
        if (i < live) counts += key[i] > threshold ? 0x10000u : key[i] == threshold ? 1u : 0u;
      }
      for (int mask = kWarp / 2; mask > 0; mask /= 2) counts += shuffle_xor(counts, mask);
    }
    if (lane == 0) tallies[row * list.chunk_stride + chunk] = {counts >> 16, counts & 0xffffu};
  }
}

// One block per list: tallies become those of all chunks before.
__global__ __launch_bounds__(kSelectThreads) void add_up_tallies(std::int64_t chunks, std::int64_t chunk_stride,
                                                                 Tally* tallies) {
  __shared__ unsigned scratch[kSelectThreads / kWarp];
  Tally* list = tallies + blockIdx.x * chunk_stride;
  Tally before{0, 0};
  for (std::int64_t begin = 0; begin < chunks; begin += kSelectThreads) {
    const std::int64_t chunk = begin + threadIdx.x;
    const Tally own = chunk < chunks ? list[chunk] : Tally{0, 0};
    Tally total;
    const unsigned above = block_prefix(own.above, scratch, total.above);
    const unsigned at = block_prefix(own.at, scratch, total.at);
    if (chunk < chunks) list[chunk] = {before.above + above, before.at + at};
    before.above += total.above;
    before.at += total.at;
  }
}

// Writes the positions: those above the threshold, and the first `remaining` of those at it. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void write_positions(Keys list, const Cut* cuts, const Tally* tallies,
                                                                  int k, std::int32_t* positions) {
  const int row = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Cut cut = cuts[row];
  positions += static_cast<std::int64_t>(row) * k;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(); chunk += warps) {
    if (list.chunk_max[row * list.chunk_stride + chunk] < cut.prefix) continue;
    unsigned key[8];
    const int live = load_keys(list, row, chunk, key);
    unsigned counts = 0;  // as in tally_chunks
    for (int i = 0; i < 8; ++i) {
      if (i < live) counts += key[i] > cut.prefix ? 0x10000u : key[i] == cut.prefix ? 1u : 0u;
    }
    unsigned before = counts;
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const unsigned below = shuffle_up(before, delta);
      if (lane >= delta) before += below;
    }
    before -= counts;
    const Tally start = tallies[row * list.chunk_stride + chunk];
    unsigned above = start.above + (before >> 16), at = start.at + (before & 0xffffu);
    const auto position = static_cast<std::int32_t>(chunk * kChunkKeys + lane * 8);
    for (int i = 0; i < live; ++i) {
      const bool higher = key[i] > cut.prefix, equal = key[i] == cut.prefix;
      if (higher || (equal && at < cut.remaining)) {
        positions[above + (at < cut.remaining ? at : cut.remaining)] = position + i;
      }
      above += higher ? 1 : 0;
      at += equal ? 1 : 0;
    }
  }
}

}  // namespace hayloft::gpu::cuda
