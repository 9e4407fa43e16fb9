#include "gpu/cuda/kernels/select/radix_select.h"

#include <algorithm>

#include "gpu/cuda/kernels/last_block.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/alpha.cuh"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kShortThreads = 1024;

// Finds the bin of a level that holds the last selected key. Every block of a pass does it anew, which spares a launch;
// the first of a list keeps it in `cuts`, [levels - 1][lists], for the passes to come. The histogram [lists][kBins] is
// that of the level, complete before this launch. Contains barriers. scratch: shared [kSelectThreads / kWarp].
__device__ inline Cut cut_at(const unsigned* histogram, int level, int k, Cut* cuts, unsigned* scratch, Cut& shared) {
  const std::int64_t row = blockIdx.y, lists = gridDim.y;
  const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(k)} : cuts[(level - 1) * lists + row];
  narrow<kSelectThreads>(histogram + row * kBins, level, before, scratch, shared);
  __syncthreads();
  const Cut found = shared;
  if (level < kLevels - 1 && blockIdx.x == 0 && threadIdx.x == 0) cuts[level * lists + row] = found;
  return found;
}

// Counts a chunk's keys that start with `prefix`, known to the level before, by their next bits. Returns how many of
// the lane's start with more. A warp calls it.
__device__ inline unsigned refine_chunk(const Keys& list, int row, std::int64_t chunk, int level, unsigned prefix,
                                        unsigned* bins /* shared */) {
  const int known = level_shift(level - 1);
  if (list.chunk_max[row * list.chunk_stride + chunk] >> known < prefix) return 0;
  unsigned key[8], higher = 0;
  const int live = load_keys(list, row, chunk, key);
  for (int i = 0; i < 8; ++i) {
    if (i >= live) continue;
    if (key[i] >> known == prefix) {
      atomic_add(bins + (key[i] >> level_shift(level) & ((1u << level_bits(level)) - 1)), 1u);
    }
    higher += key[i] >> known > prefix ? 1 : 0;
  }
  return higher;
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
// and the first cut.remaining of those at it. Returns the chunk's own tally. A warp calls it.
__device__ inline Tally write_chunk(const Keys& list, int row, std::int64_t chunk, const Cut& cut, const Tally& start,
                                    std::int32_t* positions, std::int32_t* places) {
  if (list.chunk_max[row * list.chunk_stride + chunk] < cut.prefix) return {0, 0};
  unsigned key[8];
  const int live = load_keys(list, row, chunk, key);
  const unsigned own = beside_threshold(key, live, cut.prefix), before = warp_prefix(own);
  const unsigned all = shuffle(before + own, kWarp - 1);
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
  return {all >> 16, all & 0xffffu};
}

// Writes the positions of chunks [first, past), of which each warp of a block has a run: warps count, and then write.
// `start`: the tally of the chunks before. Contains barriers. found: shared [threads / kWarp].
template <int threads>
__device__ inline void write_run(const Keys& list, int row, std::int64_t first, std::int64_t past, const Cut& cut,
                                 Tally start, Tally* found, std::int32_t* positions, std::int32_t* places) {
  constexpr int warps = threads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t run = (past - first + warps - 1) / warps, begin = first + warp * run;
  const std::int64_t end = begin + run < past ? begin + run : past;
  Tally own{0, 0};
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const Tally tally = tally_chunk(list, row, chunk, cut.prefix);
    own.above += tally.above;
    own.at += tally.at;
  }
  if (lane == 0) found[warp] = own;
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    start.above += found[w].above;
    start.at += found[w].at;
  }
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const Tally tally = write_chunk(list, row, chunk, cut, start, positions, places);
    start.above += tally.above;
    start.at += tally.at;
  }
}

// Holds what the passes over the chunks of several lists have in common. Grid of each: some blocks, lists.
struct Passes {
  Keys list;
  int k = 0;
  const unsigned* histograms = nullptr;  // [kLevels][histogram_lists][kBins]
  std::int64_t level_bins = 0;           // from one level's to the next one's
  Cut* cuts = nullptr;                   // [kLevels - 1][lists]
  unsigned* reaches = nullptr;           // [lists][blocks][kLastBins + 1]
  unsigned* written = nullptr;           // [lists] blocks that have written their positions, 0 before

  __device__ const unsigned* histogram(int level) const { return histograms + level * level_bins; }
  // Returns where a block says of its run of chunks how many keys start with the cut's bits and have so many as their
  // last ones or more, or start with more; and behind these how many start with more.
  __device__ unsigned* reach(int row, unsigned block) const {
    return reaches + (static_cast<std::int64_t>(row) * gridDim.x + block) * (kLastBins + 1);
  }
  // Returns how many chunks a block's run has, one after the other, so that what all have found says where the next
  // begins.
  __device__ std::int64_t run(int row) const { return (list.chunks(row) + gridDim.x - 1) / gridDim.x; }
};

// Makes the histogram of level 1 over the keys that start with the cut's bits.
__global__ __launch_bounds__(kSelectThreads) void refine_histogram(const Passes a, unsigned* histogram) {
  __shared__ unsigned bins[kBins], scratch[kSelectThreads / kWarp];
  __shared__ Cut cut;
  clear_bins(bins);
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  const unsigned prefix = cut_at(a.histogram(0), 0, a.k, a.cuts, scratch, cut).prefix;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk < a.list.chunks(row); chunk += warps) {
    refine_chunk(a.list, row, chunk, 1, prefix, bins);
  }
  merge_bins(bins, histogram + static_cast<std::int64_t>(row) * kBins);
}

// Makes that of the last level, of which each block keeps by itself what it has found in its run of chunks.
__global__ __launch_bounds__(kSelectThreads) void refine_runs(const Passes a, unsigned* histogram) {
  constexpr int level = kLevels - 1, warps = kSelectThreads / kWarp, each = kLastBins / kSelectThreads;
  __shared__ unsigned bins[kBins], scratch[warps];
  __shared__ Cut cut;
  clear_bins(bins);
  const int row = blockIdx.y, warp = threadIdx.x / kWarp;
  const unsigned prefix = cut_at(a.histogram(level - 1), level - 1, a.k, a.cuts, scratch, cut).prefix;
  const std::int64_t run = a.run(row), begin = blockIdx.x * run;
  const std::int64_t end = begin + run < a.list.chunks(row) ? begin + run : a.list.chunks(row);
  unsigned higher = 0;
  for (std::int64_t chunk = begin + warp; chunk < end; chunk += warps) {
    higher += refine_chunk(a.list, row, chunk, level, prefix, bins);
  }
  unsigned all_higher, counted;
  block_prefix<kSelectThreads>(higher, scratch, all_higher);
  const int top = kLastBins - 1 - static_cast<int>(threadIdx.x) * each;  // this thread's, downwards
  unsigned count = 0;
  for (int i = 0; i < each; ++i) count += bins[top - i];
  unsigned reach = all_higher + block_prefix<kSelectThreads>(count, scratch, counted);
  unsigned* const reaches = a.reach(row, blockIdx.x);
  if (threadIdx.x == 0) reaches[kLastBins] = all_higher;
  for (int i = 0; i < each; ++i) {
    reach += bins[top - i];
    reaches[top - i] = reach;
  }
  merge_bins(bins, histogram + static_cast<std::int64_t>(row) * kBins);
}

// Writes the positions of each block's run of chunks, behind those of the blocks before. The last block of a list then
// weighs them, if that is wanted.
__global__ __launch_bounds__(kSelectThreads) void write_positions(const Passes a, std::int32_t* positions,
                                                                  const Weighing weighing) {
  constexpr int warps = kSelectThreads / kWarp;
  __shared__ unsigned scratch[warps];
  __shared__ Cut shared;
  __shared__ Tally found[warps];
  __shared__ float sums[kWeighedHeads * warps];
  __shared__ bool last;
  const int row = blockIdx.y;
  const Cut cut = cut_at(a.histogram(kLevels - 1), kLevels - 1, a.k, a.cuts, scratch, shared);
  const unsigned bin = cut.prefix % kLastBins;
  Tally own{0, 0}, start;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kSelectThreads) {
    const unsigned* const reach = a.reach(row, block);
    own.above += reach[bin + 1];
    own.at += reach[bin] - reach[bin + 1];
  }
  block_prefix<kSelectThreads>(own.above, scratch, start.above);
  block_prefix<kSelectThreads>(own.at, scratch, start.at);
  const std::int64_t run = a.run(row), first = blockIdx.x * run;
  const std::int64_t past = first + run < a.list.chunks(row) ? first + run : a.list.chunks(row);
  positions += static_cast<std::int64_t>(row) * a.k;
  std::int32_t* const places = a.list.places ? a.list.places + static_cast<std::int64_t>(row) * a.k : nullptr;
  write_run<kSelectThreads>(a.list, row, first, past, cut, start, found, positions, places);
  if (!weighing.alpha || !is_last_block(a.written + row, gridDim.x, last)) return;
  weigh_list<kSelectThreads>(weighing, row, places ? places : positions, a.k, sums);
}

// Does all of this in one kernel, for lists so short that the passes of a block take less time than as many launches.
// Each list has a block.
__global__ __launch_bounds__(kShortThreads) void select_short(Keys list, const unsigned* histogram, int k,
                                                              std::int32_t* positions, const Weighing weighing) {
  constexpr int warps = kShortThreads / kWarp;
  __shared__ unsigned bins[kBins], scratch[warps];
  __shared__ Cut cut;
  __shared__ Tally found[warps];
  __shared__ float sums[kWeighedHeads * warps];
  const int row = blockIdx.x, warp = threadIdx.x / kWarp;
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
  positions += static_cast<std::int64_t>(row) * k;
  std::int32_t* const places = list.places ? list.places + static_cast<std::int64_t>(row) * k : nullptr;
  write_run<kShortThreads>(list, row, 0, chunks, last, {0, 0}, found, positions, places);
  if (!weighing.alpha) return;
  __syncthreads();
  weigh_list<kShortThreads>(weighing, row, places ? places : positions, k, sums);
}

}  // namespace

RadixSelect::RadixSelect(const Context& context, int lists, cudaStream_t stream)
    : context_(context),
      stream_(stream),
      lists_(lists),
      zeroed_(context, zeroed(lists), stream),
      cuts_(context, std::int64_t{kLevels - 1} * lists, stream),
      reaches_(context, std::max<std::int64_t>(lists, most_blocks()) * (kLastBins + 1), stream) {}

void RadixSelect::clear() {
  HAYLOFT_CUDA(
      cudaMemsetAsync(zeroed_, 0, static_cast<std::uint64_t>(zeroed(lists_)) * sizeof(unsigned), in_order(stream_)));
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

void RadixSelect::select(const Keys& keys, int lists, int k, std::int32_t* positions, const Weighing& weighing) {
  const auto all = static_cast<unsigned>(lists);
  if (keys.limit <= context_.short_list_keys) {
    launch("select_short", select_short, {all, kShortThreads}, stream_, keys, histogram(0), k, positions, weighing);
    return;
  }
  const Shape pass{pass_grid(lists, keys.limit), kSelectThreads};
  const Passes passes{keys, k, histogram(0), std::int64_t{lists_} * kBins, cuts_, reaches_, counters(0)};
  launch("refine_histogram", refine_histogram, pass, stream_, passes, histogram(1));
  launch("refine_runs", refine_runs, pass, stream_, passes, histogram(2));
  launch("write_positions", write_positions, pass, stream_, passes, positions, weighing);
}

}  // namespace hayloft::gpu::cuda
