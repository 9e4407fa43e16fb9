#include "gpu/cuda/kernels/select/radix_select.h"

#include <algorithm>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kShortThreads = 1024;

// Finds the bin of a level that holds the last selected key. Every block of a pass does it anew, which spares a launch;
// the first of a list keeps it in `cuts`, [levels][lists], for the passes to come. The histogram [lists][kBins] is that
// of the level, complete before this launch. Contains barriers. scratch: shared [kSelectThreads / kWarp].
__device__ inline Cut cut_at(const unsigned* histogram, int level, int k, Cut* cuts, unsigned* scratch, Cut& shared) {
  const std::int64_t row = blockIdx.y, lists = gridDim.y;
  const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(k)} : cuts[(level - 1) * lists + row];
  narrow<kSelectThreads>(histogram + row * kBins, level, before, scratch, shared);
  __syncthreads();
  const Cut found = shared;
  if (blockIdx.x == 0 && threadIdx.x == 0) cuts[level * lists + row] = found;
  return found;
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

// Holds what the passes over the chunks of several lists have in common. Grid of each: some blocks, lists.
struct Passes {
  Keys list;
  int k = 0;
  const unsigned* histograms = nullptr;  // [kLevels][histogram_lists][kBins]
  std::int64_t level_bins = 0;           // from one level's to the next one's
  Cut* cuts = nullptr;                   // [kLevels][lists]
  Tally* tallies = nullptr;              // [lists][chunk_stride], of chunks
  Tally* of_blocks = nullptr;            // [lists][blocks], of the runs of chunks that blocks have

  __device__ const unsigned* histogram(int level) const { return histograms + level * level_bins; }
  // Returns how many chunks a block tallies and writes, one after the other, so that its sum says where the next
  // begins.
  __device__ std::int64_t run(int row) const { return (list.chunks(row) + gridDim.x - 1) / gridDim.x; }
};

// Makes the histogram of `level` (1 or 2) over the keys that start with the cut's bits.
__global__ __launch_bounds__(kSelectThreads) void refine_histogram(const Passes a, int level, unsigned* histogram) {
  __shared__ unsigned bins[kBins], scratch[kSelectThreads / kWarp];
  __shared__ Cut cut;
  clear_bins(bins);
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  const unsigned prefix = cut_at(a.histogram(level - 1), level - 1, a.k, a.cuts, scratch, cut).prefix;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < a.list.chunks(row); chunk += warps) {
    refine_chunk(a.list, row, chunk, level, prefix, bins);
  }
  merge_bins(bins, histogram + static_cast<std::int64_t>(row) * kBins);
}

// Counts what lies above the threshold and at it, of each chunk and of each block's run of them.
__global__ __launch_bounds__(kSelectThreads) void tally_chunks(const Passes a) {
  constexpr int warps = kSelectThreads / kWarp;
  __shared__ unsigned scratch[warps];
  __shared__ Cut cut;
  __shared__ Tally found[warps];
  const int row = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned threshold = cut_at(a.histogram(kLevels - 1), kLevels - 1, a.k, a.cuts, scratch, cut).prefix;
  const std::int64_t run = a.run(row), begin = blockIdx.x * run;
  const std::int64_t end = begin + run < a.list.chunks(row) ? begin + run : a.list.chunks(row);
  Tally own{0, 0};
  for (std::int64_t chunk = begin + warp; chunk < end; chunk += warps) {
    const Tally tally = tally_chunk(a.list, row, chunk, threshold);
    own.above += tally.above;
    own.at += tally.at;
    if (lane == 0) a.tallies[row * a.list.chunk_stride + chunk] = tally;
  }
  if (lane == 0) found[warp] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < warps; ++w) {
    own.above += found[w].above;
    own.at += found[w].at;
  }
  a.of_blocks[static_cast<std::int64_t>(row) * gridDim.x + blockIdx.x] = own;
}

// Adds up tallies [begin, end). A warp calls it.
__device__ inline Tally sum_tallies(const Tally* tallies, std::int64_t begin, std::int64_t end) {
  Tally sum{0, 0};
  for (std::int64_t i = begin + threadIdx.x % kWarp; i < end; i += kWarp) {
    const Tally own = tallies[i];
    sum.above += own.above;
    sum.at += own.at;
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    sum.above += shuffle_xor(sum.above, mask);
    sum.at += shuffle_xor(sum.at, mask);
  }
  return sum;
}

// Writes the positions of each block's run of chunks, behind those of the blocks before. Each warp has a part of the
// run, and adds up by itself what comes before that.
__global__ __launch_bounds__(kSelectThreads) void write_positions(const Passes a, std::int32_t* positions) {
  constexpr int warps = kSelectThreads / kWarp;
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  const Cut cut = a.cuts[static_cast<std::int64_t>(kLevels - 1) * gridDim.y + row];
  const Tally* const tallies = a.tallies + row * a.list.chunk_stride;
  const std::int64_t run = a.run(row), first = blockIdx.x * run;
  const std::int64_t past = first + run < a.list.chunks(row) ? first + run : a.list.chunks(row);
  const std::int64_t part = (run + warps - 1) / warps, begin = first + warp * part;
  const std::int64_t end = begin + part < past ? begin + part : past;
  if (begin >= end) return;
  Tally start = sum_tallies(a.of_blocks + static_cast<std::int64_t>(row) * gridDim.x, 0, blockIdx.x);
  const Tally before = sum_tallies(tallies, first, begin);
  start.above += before.above;
  start.at += before.at;
  positions += static_cast<std::int64_t>(row) * a.k;
  std::int32_t* const places = a.list.places ? a.list.places + static_cast<std::int64_t>(row) * a.k : nullptr;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    write_chunk(a.list, row, chunk, cut, start, positions, places);
    start.above += tallies[chunk].above;
    start.at += tallies[chunk].at;
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
      cuts_(context, std::int64_t{kLevels} * lists, stream),
      of_blocks_(context, lists + most_blocks(), stream) {}

void RadixSelect::clear_histograms() {
  HAYLOFT_CUDA(cudaMemsetAsync(
      histograms_, 0, std::uint64_t{kLevels} * static_cast<unsigned>(lists_) * kBins * sizeof(unsigned), stream_));
}

std::int64_t RadixSelect::most_blocks() const {
  return std::max(1, 4 * context_.multiprocessors);
}

dim3 RadixSelect::pass_grid(int lists, std::int64_t limit) const {
  const std::int64_t blocks =
      (limit + kChunkKeys * (kSelectThreads / kWarp) - 1) / (kChunkKeys * (kSelectThreads / kWarp));
  const std::int64_t useful = std::max<std::int64_t>(1, most_blocks() / lists);
  return dim3(static_cast<unsigned>(std::min(blocks, useful)), static_cast<unsigned>(lists));
}

void RadixSelect::select(const Keys& keys, int lists, int k, std::int32_t* positions) {
  const auto all = static_cast<unsigned>(lists);
  if (keys.limit <= context_.short_list_keys) {
    launch("select_short", select_short, {all, kShortThreads}, stream_, keys, histogram(0), k, positions);
    return;
  }
  const Shape pass{pass_grid(lists, keys.limit), kSelectThreads};
  const Passes passes{keys, k, histogram(0), std::int64_t{lists_} * kBins, cuts_, tallies_, of_blocks_};
  for (int level = 1; level < kLevels; ++level) {
    launch("refine_histogram", refine_histogram, pass, stream_, passes, level, histogram(level));
  }
  launch("tally_chunks", tally_chunks, pass, stream_, passes);
  launch("write_positions", write_positions, pass, stream_, passes, positions);
}

}  // namespace hayloft::gpu::cuda
