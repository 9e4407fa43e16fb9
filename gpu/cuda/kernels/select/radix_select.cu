#include "gpu/cuda/kernels/select/radix_select.h"

#include <algorithm>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kShortThreads = 1024;

// One block per list: finds the bin that holds the last selected key, from the histogram [lists][kBins] of `level`.
// Level 0 begins with k; the others go on from the list's cut.
__global__ __launch_bounds__(kSelectThreads) void narrow_cut(const unsigned* histogram, int level, int k, Cut* cuts) {
  __shared__ unsigned scratch[kSelectThreads / kWarp];
  const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(k)} : cuts[blockIdx.x];
  __syncthreads();  // one thread is going to change it
  narrow<kSelectThreads>(histogram + static_cast<std::int64_t>(blockIdx.x) * kBins, level, before, scratch,
                         cuts[blockIdx.x]);
}

// Counts a chunk's keys that start with `prefix`, known to the level before, by their next bits. A warp calls it.
__device__ inline void refine_chunk(const Keys& list, int row, std::int64_t chunk, int level, unsigned prefix,
                                    unsigned* bins /* shared */) {
  const int known = level_shift(level - 1);
  if (list.chunk_max[row * list.chunk_stride + chunk] >> known < prefix) return;
  unsigned key[8];
  const int live = load_keys(list, row, chunk, key);
  for (int i = 0; i < 8; ++i) {
    if (i < live && key[i] >> known == prefix) {
      atomic_add(bins + (key[i] >> level_shift(level) & ((1u << level_bits(level)) - 1)), 1u);
    }
  }
}

// Returns how many of a lane's keys of a chunk are above the threshold, in the upper half of the word, and at it. There
// are at most 256 of each kind in a chunk.
__device__ inline unsigned beside_threshold(const unsigned (&key)[8], int live, unsigned threshold) {
  unsigned counts = 0;
  for (int i = 0; i < 8; ++i) {
    if (i < live) counts += key[i] > threshold ? 0x10000u : key[i] == threshold ? 1u : 0u;
  }
  return counts;
}

// Returns how many of a chunk's keys are above the threshold and at it. A warp calls it.
__device__ inline Tally tally_chunk(const Keys& list, int row, std::int64_t chunk, unsigned threshold) {
  if (list.chunk_max[row * list.chunk_stride + chunk] < threshold) return {0, 0};
  unsigned key[8];
  const int live = load_keys(list, row, chunk, key);
  unsigned counts = beside_threshold(key, live, threshold);
  for (int mask = kWarp / 2; mask > 0; mask /= 2) counts += shuffle_xor(counts, mask);
  return {counts >> 16, counts & 0xffffu};
}

// Writes a chunk's positions that are selected, `start` being those of the chunks before: those above the threshold,
// and the first cut.remaining of those at it. A warp calls it.
__device__ inline void write_chunk(const Keys& list, int row, std::int64_t chunk, const Cut& cut, const Tally& start,
                                   std::int32_t* positions, std::int32_t* places) {
  if (list.chunk_max[row * list.chunk_stride + chunk] < cut.prefix) return;
  unsigned key[8];
  const int live = load_keys(list, row, chunk, key);
  const unsigned before = warp_prefix(beside_threshold(key, live, cut.prefix));
  unsigned above = start.above + (before >> 16), at = start.at + (before & 0xffffu);
  const auto place = static_cast<std::int32_t>(chunk * kChunkKeys + threadIdx.x % kWarp * 8);
  const std::int32_t position = live > 0 ? list.strips.position(row, place) : 0;  // of the first, all in one strip
  for (int i = 0; i < live; ++i) {
    const bool higher = key[i] > cut.prefix, equal = key[i] == cut.prefix;
    if (higher || (equal && at < cut.remaining)) {
      const unsigned to = above + (at < cut.remaining ? at : cut.remaining);
      positions[to] = position + i;
      if (places) places[to] = place + i;
    }
    above += higher ? 1 : 0;
    at += equal ? 1 : 0;
  }
}

// Histogram of `level` (1 or 2) over the keys that start with the cut's bits. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void refine_histogram(Keys list, int level, const Cut* cuts,
                                                                   unsigned* histogram) {
  __shared__ unsigned bins[kBins];
  clear_bins(bins);
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  const unsigned prefix = cuts[row].prefix;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(row); chunk += warps) {
    refine_chunk(list, row, chunk, level, prefix, bins);
  }
  merge_bins(bins, histogram + static_cast<std::int64_t>(row) * kBins);
}

// Per chunk, what lies above the threshold and at it. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void tally_chunks(Keys list, const Cut* cuts, Tally* tallies) {
  const int row = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned threshold = cuts[row].prefix;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(row); chunk += warps) {
    const Tally tally = tally_chunk(list, row, chunk, threshold);
    if (lane == 0) tallies[row * list.chunk_stride + chunk] = tally;
  }
}

// One block per list: tallies become those of all chunks before. Each warp adds up a run of chunks of its own, and goes
// over it a second time with what the warps before it have found: one barrier, however long the list.
__global__ __launch_bounds__(kSelectThreads) void add_up_tallies(Keys keys, Tally* tallies) {
  constexpr int warps = kSelectThreads / kWarp;
  __shared__ unsigned scratch[2][warps];
  Tally* list = tallies + blockIdx.x * keys.chunk_stride;
  const std::int64_t chunks = keys.chunks(static_cast<int>(blockIdx.x));
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t run = (chunks + kSelectThreads - 1) / kSelectThreads * kWarp;
  const std::int64_t begin = warp * run, end = begin + run < chunks ? begin + run : chunks;
  Tally sum{0, 0};
  for (std::int64_t chunk = begin + lane; chunk < end; chunk += kWarp) {
    const Tally own = list[chunk];
    sum.above += own.above;
    sum.at += own.at;
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    sum.above += shuffle_xor(sum.above, mask);
    sum.at += shuffle_xor(sum.at, mask);
  }
  if (lane == 0) {
    scratch[0][warp] = sum.above;
    scratch[1][warp] = sum.at;
  }
  __syncthreads();
  Tally before{0, 0};
  for (int w = 0; w < warp; ++w) {
    before.above += scratch[0][w];
    before.at += scratch[1][w];
  }
  for (std::int64_t first = begin; first < end; first += kWarp) {
    const std::int64_t chunk = first + lane;
    const bool live = chunk < end;
    const Tally own = live ? list[chunk] : Tally{0, 0};
    const Tally here{before.above + warp_prefix(own.above), before.at + warp_prefix(own.at)};
    if (live) list[chunk] = here;
    before.above = shuffle(here.above + own.above, kWarp - 1);
    before.at = shuffle(here.at + own.at, kWarp - 1);
  }
}

// Writes the positions. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void write_positions(Keys list, const Cut* cuts, const Tally* tallies,
                                                                  int k, std::int32_t* positions) {
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  std::int32_t* const places = list.places ? list.places + static_cast<std::int64_t>(row) * k : nullptr;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(row); chunk += warps) {
    write_chunk(list, row, chunk, cuts[row], tallies[row * list.chunk_stride + chunk],
                positions + static_cast<std::int64_t>(row) * k, places);
  }
}

// Does all of this in one kernel, for lists so short that the passes of a block take less time than as many launches.
// Each list has a block; each warp counts, and then writes, a run of chunks of its own.
__global__ __launch_bounds__(kShortThreads) void select_short(Keys list, const unsigned* histogram, int k,
                                                              std::int32_t* positions) {
  constexpr int warps = kShortThreads / kWarp;
  __shared__ unsigned bins[kBins], scratch[warps];
  __shared__ Cut cut;
  __shared__ Tally found[warps];
  const int row = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t chunks = list.chunks(row);
  narrow<kShortThreads>(histogram + static_cast<std::int64_t>(row) * kBins, 0, {0, static_cast<unsigned>(k)}, scratch,
                        cut);
  for (int level = 1; level < kLevels; ++level) {
    __syncthreads();  // the cut is there, and nobody needs the bins any more
    const Cut before = cut;
    for (int i = threadIdx.x; i < kBins; i += kShortThreads) bins[i] = 0;
    __syncthreads();
    for (std::int64_t chunk = warp; chunk < chunks; chunk += warps) {
      refine_chunk(list, row, chunk, level, before.prefix, bins);
    }
    __syncthreads();
    narrow<kShortThreads>(bins, level, before, scratch, cut);
  }
  __syncthreads();
  const Cut last = cut;
  const std::int64_t run = (chunks + warps - 1) / warps, begin = warp * run;
  const std::int64_t end = begin + run < chunks ? begin + run : chunks;
  Tally own{0, 0};
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const Tally tally = tally_chunk(list, row, chunk, last.prefix);
    own.above += tally.above;
    own.at += tally.at;
  }
  if (lane == 0) found[warp] = own;
  __syncthreads();
  Tally start{0, 0};
  for (int w = 0; w < warp; ++w) {
    start.above += found[w].above;
    start.at += found[w].at;
  }
  positions += static_cast<std::int64_t>(row) * k;
  std::int32_t* const places = list.places ? list.places + static_cast<std::int64_t>(row) * k : nullptr;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const Tally tally = tally_chunk(list, row, chunk, last.prefix);
    write_chunk(list, row, chunk, last, start, positions, places);
    start.above += tally.above;
    start.at += tally.at;
  }
}

}  // namespace

RadixSelect::RadixSelect(const Context& context, int lists, std::int64_t chunk_stride, cudaStream_t stream)
    : context_(context),
      stream_(stream),
      lists_(lists),
      tallies_(context, lists * chunk_stride, stream),
      histograms_(context, std::int64_t{kLevels} * lists * kBins, stream),
      cuts_(context, lists, stream) {}

void RadixSelect::clear_histograms() {
  HAYLOFT_CUDA(cudaMemsetAsync(
      histograms_, 0, std::uint64_t{kLevels} * static_cast<unsigned>(lists_) * kBins * sizeof(unsigned), stream_));
}

dim3 RadixSelect::pass_grid(int lists, std::int64_t limit) const {
  const std::int64_t blocks =
      (limit + kChunkKeys * (kSelectThreads / kWarp) - 1) / (kChunkKeys * (kSelectThreads / kWarp));
  const std::int64_t useful = std::max(1, 4 * context_.multiprocessors / lists);
  return dim3(static_cast<unsigned>(std::min(blocks, useful)), static_cast<unsigned>(lists));
}

void RadixSelect::select(const Keys& keys, int lists, int k, std::int32_t* positions) {
  const auto all = static_cast<unsigned>(lists);
  if (keys.limit <= context_.short_list_keys) {
    launch("select_short", select_short, {all, kShortThreads}, stream_, keys, histogram(0), k, positions);
    return;
  }
  const Shape pass{pass_grid(lists, keys.limit), kSelectThreads};
  launch("narrow_cut", narrow_cut, {all, kSelectThreads}, stream_, histogram(0), 0, k, cuts_);
  for (int level = 1; level < kLevels; ++level) {
    launch("refine_histogram", refine_histogram, pass, stream_, keys, level, cuts_, histogram(level));
    launch("narrow_cut", narrow_cut, {all, kSelectThreads}, stream_, histogram(level), level, k, cuts_);
  }
  launch("tally_chunks", tally_chunks, pass, stream_, keys, cuts_, tallies_);
  launch("add_up_tallies", add_up_tallies, {all, kSelectThreads}, stream_, keys, tallies_);
  launch("write_positions", write_positions, pass, stream_, keys, cuts_, tallies_, k, positions);
}

}  // namespace hayloft::gpu::cuda
