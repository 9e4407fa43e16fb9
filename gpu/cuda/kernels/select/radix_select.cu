#include "gpu/cuda/kernels/select/radix_select.h"

#include <algorithm>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

// One block per list: finds the bin that holds the last selected key, from the histogram [lists][kBins] of `level`.
// Level 0 begins with k; the others go on from the list's cut.
__global__ __launch_bounds__(kSelectThreads) void narrow_cut(const unsigned* histogram, int level, int k, Cut* cuts) {
  __shared__ unsigned scratch[kSelectThreads / kWarp];
  const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(k)} : cuts[blockIdx.x];
  __syncthreads();  // one thread is going to change it
  narrow<kSelectThreads>(histogram + static_cast<std::int64_t>(blockIdx.x) * kBins, level, before, scratch,
                         cuts[blockIdx.x]);
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
       chunk < list.chunks(row); chunk += warps) {
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
       chunk < list.chunks(row); chunk += warps) {
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

// Writes the positions: those above the threshold, and the first `remaining` of those at it. Grid: some blocks, lists.
__global__ __launch_bounds__(kSelectThreads) void write_positions(Keys list, const Cut* cuts, const Tally* tallies,
                                                                  int k, std::int32_t* positions) {
  const int row = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Cut cut = cuts[row];
  positions += static_cast<std::int64_t>(row) * k;
  std::int32_t* const places = list.places ? list.places + static_cast<std::int64_t>(row) * k : nullptr;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < list.chunks(row); chunk += warps) {
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
    const auto place = static_cast<std::int32_t>(chunk * kChunkKeys + lane * 8);
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
