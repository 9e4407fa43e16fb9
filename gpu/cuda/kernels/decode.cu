#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "gpu/cuda/api/fetch.h"
#include "gpu/cuda/api/stage_clock.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/merge.cuh"
#include "gpu/cuda/kernels/place_rows.h"
#include "gpu/cuda/kernels/rows.cuh"
#include "gpu/cuda/memory/row_cache.h"
#include "gpu/cuda/memory/row_stream.h"
#include "gpu/cuda_memory.h"
#include "index/scan/exact_search.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kBlocksPerMultiprocessor = 8;  // more pieces than this only make more states to merge

constexpr std::uint64_t kShareOfStates = 4;  // of what is left for a step, for steps that attend together

constexpr unsigned kSharedBytes = 48 * 1024;  // a kernel may have without asking for more

using RowKernel = void (*)(AttendRows);

// Heads per warp for up to 4, 8 and 16 query heads, by strips for d up to 64, 128, 192, 256 and 512.
template <bool Integers>
RowKernel row_kernel(int heads, int head_dim) {
  static constexpr RowKernel kernels[3][kNarrowStrips + 1] = {
      {attend_rows<1, 1, Integers>, attend_rows<1, 2, Integers>, attend_rows<1, 3, Integers>,
       attend_rows<1, 4, Integers>, attend_rows<1, 8, Integers>},
      {attend_rows<2, 1, Integers>, attend_rows<2, 2, Integers>, attend_rows<2, 3, Integers>,
       attend_rows<2, 4, Integers>, attend_rows<2, 8, Integers>},
      {attend_rows<4, 1, Integers>, attend_rows<4, 2, Integers>, attend_rows<4, 3, Integers>,
       attend_rows<4, 4, Integers>, nullptr},  // as row_heads() says
  };
  return kernels[heads <= 4 ? 0 : heads <= 8 ? 1 : 2][std::min(strips_of(head_dim) - 1, kNarrowStrips)];
}

int heads_of_kernel(int heads) {
  return heads <= 4 ? 4 : heads <= 8 ? 8 : 16;
}

// Sorts what one decode step attends to by the way its rows are read, and computes it.
class Decode {
 public:
  Decode(const Context& context, const CacheView& cache, const float* q, int query_heads, const Attended& what,
         cudaStream_t stream)
      : context_(context),
        cache_(cache),
        what_(what),
        stream_(stream),
        query_heads_(query_heads),
        stored_(cache.store.tokens > 0),
        in_place_(!stored_ || context.tables.pinned(cache.store)),
        tile_rows_(tile_rows(strips_of(cache.head_dim))) {
    base_.q = q;
    base_.group = query_heads / cache.kv_heads;
    base_.head_dim = cache.head_dim;
    base_.scale = index::exact_scale(cache.head_dim);
    if (stored_) base_.store = context.tables.find(cache.store, stream);
    sort_rows();
  }

  // Attends alone.
  void run(float* out) {
    std::optional<RowStream> rows;
    std::vector<std::int32_t> positions;  // of lists of which host threads gather a part
    std::vector<std::int32_t> sizes;
    if (listed_rows_ > 0 && what_.sizes) {
      sizes = fetch(what_.sizes, what_.lists, stream_);
      listed_rows_ = *std::max_element(sizes.begin(), sizes.end());
    }
    if (listed_rows_ > 0) positions = fetch(what_.positions, std::int64_t{what_.lists} * what_.k, stream_);
    if (streamed_rows_ + listed_rows_ > 0) {
      rows.emplace(context_, cache_, std::max(listed_rows_ > 0 ? what_.lists : 0, cache_.kv_heads),
                   std::max(streamed_rows_, listed_rows_), stream_);
    }
    start(rows ? &*rows : nullptr);
    if (streamed_rows_ > 0) {
      const Stage stage(context_.stages, "dense stream", stream_);
      stream_ranges(*rows, [this](const DenseRows& chunk, std::int64_t begin, std::int64_t end) {
        attend_chunk(chunk, begin, end);
      });
    }
    if (!positions.empty()) attend_lists(*rows, positions, sizes);
    merge(out);
  }

  // Returns whether both bring the same rows to the device in chunks, and nothing else.
  bool streams_as(const Decode& other) const;
  // Returns the device memory that the states of one take at most.
  std::uint64_t most_state_bytes() const;
  // All of them attend to what they stream alike, chunk by chunk, each as it does alone.
  static void run_together(std::deque<Decode>& steps, std::span<const AttendStep> outs);

 private:
  void start(const RowStream* rows);
  void stream_ranges(RowStream& rows, const RowStream::Use& use) const;
  void attend_chunk(const DenseRows& chunk, std::int64_t begin, std::int64_t end);
  void attend_lists(RowStream& rows, const std::vector<std::int32_t>& positions,
                    const std::vector<std::int32_t>& sizes);
  AttendRows of_part(const RowPart& part, int first_slot) const;
  void attend_direct();
  void sort_rows();
  void add_direct(RowPart part);
  void cut(RowPart& part, std::int64_t tiles, int lists) const;
  RowPart chunk_part(const RowStream* rows, int lists, std::int64_t most_rows) const;
  void launch_rows(const AttendRows& args) const;
  void merge(float* out) const;

  DenseRows dense_tail() const {
    return {cache_.tail.rows, cache_.tail.capacity, cache_.tail.first, cache_.tail.position};
  }
  std::int64_t tiles_of(std::int64_t rows) const { return (rows + tile_rows_ - 1) / tile_rows_; }
  int wanted_blocks() const { return std::max(1, context_.multiprocessors) * kBlocksPerMultiprocessor; }

  const Context& context_;
  const CacheView& cache_;
  const Attended& what_;
  cudaStream_t stream_;
  int query_heads_;
  bool stored_;    // whether there is a store
  bool in_place_;  // whether kernels may read all of it
  int tile_rows_;
  AttendRows base_;                                     // with the rows that kernels read where they lie
  int parts_ = 0;                                       // of base_
  Attended::Range streamed_[2];                         // in the store, brought to the device in chunks
  std::int64_t streamed_rows_ = 0;                      // of the longer
  std::int64_t listed_rows_ = 0;                        // of each list, where kernels do not reach every block
  RowPart listed_;                                      // its slots are the last
  AttendRows chunks_;                                   // of what is streamed
  std::optional<Scratch<float>> weighted_, max_, sum_;  // of base_.states
  std::optional<Scratch<float>> tail_sums_;             // of base_.values
};

// Makes room for the states of all that is attended to, in memory of the device, and attends to what lies in place.
void Decode::start(const RowStream* rows) {
  const int direct = base_.parts[0].pieces + base_.parts[1].pieces + base_.parts[2].pieces;
  const RowPart streamed = chunk_part(rows, cache_.kv_heads, streamed_rows_);
  listed_ = chunk_part(rows, what_.lists, listed_rows_);
  States& states = base_.states;
  states.slots = direct + streamed.pieces + listed_.pieces;
  const std::int64_t count = static_cast<std::int64_t>(query_heads_) * states.slots;
  weighted_.emplace(context_, count * cache_.head_dim, stream_);
  max_.emplace(context_, count, stream_);
  sum_.emplace(context_, count, stream_);
  states.weighted = *weighted_;
  states.max = *max_;
  states.sum = *sum_;
  chunks_ = of_part(streamed, direct);
  const int parts = what_.alpha ? static_cast<int>(blocks_for(cache_.tail.tokens, kMeanRows)) : 0;
  if (parts > 0) {
    tail_sums_.emplace(context_, std::int64_t{cache_.kv_heads} * cache_.head_dim * parts, stream_);
    base_.values = {dense_tail(), cache_.tail.tokens, *tail_sums_, parts};
  }
  if (direct + parts > 0) attend_direct();
}

AttendRows Decode::of_part(const RowPart& part, int first_slot) const {
  AttendRows args = base_;
  args.cached = {};
  args.values = {};
  args.first_slot = first_slot;
  for (RowPart& unused : args.parts) unused = {};
  args.parts[0] = part;
  return args;
}

void Decode::stream_ranges(RowStream& rows, const RowStream::Use& use) const {
  for (const Attended::Range& range : streamed_) {
    if (range.begin < range.end) rows.range(range.begin, range.end, use);
  }
}

void Decode::attend_chunk(const DenseRows& chunk, std::int64_t begin, std::int64_t end) {
  chunks_.parts[0].begin = begin;
  chunks_.parts[0].end = end;
  chunks_.parts[0].dense = chunk;
  launch_rows(chunks_);
  chunks_.resume = true;
}

void Decode::attend_lists(RowStream& rows, const std::vector<std::int32_t>& positions,
                          const std::vector<std::int32_t>& sizes) {
  listed_.positions = what_.positions;
  listed_.stride = what_.k;
  listed_.sizes = what_.sizes;
  listed_.stored = cache_.store.tokens;
  listed_.gathered = true;
  AttendRows args = of_part(listed_, base_.states.slots - listed_.pieces);
  const std::int32_t* const of_each = what_.sizes ? sizes.data() : nullptr;
  rows.lists({positions.data(), what_.positions, of_each, what_.sizes, what_.lists, what_.k},
             [&](const DenseRows& chunk, std::int64_t begin, std::int64_t end) {
               args.parts[0].begin = begin;
               args.parts[0].end = end;
               args.parts[0].dense = chunk;
               launch_rows(args);
               args.resume = true;
             });
}

bool Decode::streams_as(const Decode& other) const {
  const auto same = [](const Attended::Range& a, const Attended::Range& b) {
    return a.begin == b.begin && a.end == b.end;
  };
  const auto &ours = cache_.store.blocks, &theirs = other.cache_.store.blocks;
  return streamed_rows_ > 0 && listed_rows_ == 0 && other.listed_rows_ == 0 &&
         cache_.store.tokens == other.cache_.store.tokens && same(streamed_[0], other.streamed_[0]) &&
         same(streamed_[1], other.streamed_[1]) && std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end());
}

std::uint64_t Decode::most_state_bytes() const {
  // A part has no more pieces than wanted blocks and one for each head.
  const auto pieces = static_cast<std::uint64_t>((kRowParts + 1) * (wanted_blocks() / cache_.kv_heads + 1));
  return pieces * static_cast<std::uint64_t>(query_heads_) * static_cast<std::uint64_t>(cache_.head_dim + 2) *
         sizeof(float);
}

void Decode::run_together(std::deque<Decode>& steps, std::span<const AttendStep> outs) {
  Decode& first = steps.front();
  if (steps.size() == 1) return first.run(outs.front().out);
  RowStream rows(first.context_, first.cache_, first.cache_.kv_heads, first.streamed_rows_, first.stream_);
  for (Decode& step : steps) step.start(&rows);
  {
    const Stage stage(first.context_.stages, "dense stream", first.stream_);
    first.stream_ranges(rows, [&](const DenseRows& chunk, std::int64_t begin, std::int64_t end) {
      for (Decode& step : steps) step.attend_chunk(chunk, begin, end);
    });
  }
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].merge(outs[i].out);
}

// The rows that kernels read where they lie, of lists those that the device keeps there.
void Decode::attend_direct() {
  const Stage stage(context_.stages, "rows", stream_);
  if (what_.lists == 0 || what_.k == 0 || !in_place_ || context_.rows.most_bytes() == 0) return launch_rows(base_);
  const Scratch<std::uint32_t> places(context_, std::int64_t{what_.lists} * what_.k, stream_);
  const std::unique_ptr<RowCache::Use> cached = context_.rows.use(cache_.store, stream_);
  if (cached) {
    const RowReads reads{what_.positions, what_.sizes,   what_.lists / cache_.kv_heads,
                         what_.k,         cached->now(), what_.held_bytes};
    place_rows(base_.store, cached->slots(), reads, places, stream_);
    base_.cached = {places, cached->slots().data, cached->slots().row_bytes};
  }
  launch_rows(base_);
  if (cached) cached->done();
}

void Decode::sort_rows() {
  const std::int64_t stored = cache_.store.tokens;
  if (what_.lists > 0 && what_.k > 0) {
    if (in_place_) {
      RowPart part;
      part.positions = what_.positions;
      part.stride = what_.k;
      part.sizes = what_.sizes;
      part.end = what_.k;
      part.lists = what_.lists / cache_.kv_heads;
      add_direct(part);
    } else {
      listed_rows_ = what_.k;
    }
  }
  for (int i = 0; i < 2; ++i) {
    Attended::Range range = what_.ranges[i];
    if (range.begin >= range.end) continue;
    const std::int64_t in_store = std::min(range.end, stored) - range.begin;
    // The copy engine needs a kernel's time to get going; less than a block is read faster than that.
    if (in_store > 0 && (!in_place_ || in_store >= cache_.store.layout->block_tokens)) {
      streamed_[i] = {range.begin, range.begin + in_store};
      streamed_rows_ = std::max(streamed_rows_, in_store);
      range.begin += in_store;
    }
    if (range.begin == range.end) continue;
    RowPart part;
    part.begin = range.begin;
    part.end = range.end;
    add_direct(part);
  }

  // Each part on its own, so that what comes over the link is not cut more coarsely because the tail is long.
  for (RowPart& part : base_.parts) cut(part, tiles_of(part.end - part.begin), part.lists * cache_.kv_heads);
}

void Decode::add_direct(RowPart part) {
  part.stored = cache_.store.tokens;
  part.dense = dense_tail();
  base_.parts[parts_++] = part;
}

// Into pieces that keep the device busy, of so many tiles in each of all lists.
void Decode::cut(RowPart& part, std::int64_t tiles, int lists) const {
  const std::int64_t wanted = (wanted_blocks() + lists - 1) / lists;
  const std::int64_t piece_tiles = std::max<std::int64_t>(1, (tiles + wanted - 1) / wanted);
  part.piece_rows = piece_tiles * tile_rows_;
  part.pieces = static_cast<int>((tiles + piece_tiles - 1) / piece_tiles);
}

// Returns how the rows of a chunk are cut up. Every chunk of a pass goes to the same slots, so that the states of a
// context of any length take the memory of one chunk's.
RowPart Decode::chunk_part(const RowStream* rows, int lists, std::int64_t most_rows) const {
  RowPart part;
  if (most_rows == 0) return part;
  part.lists = lists / cache_.kv_heads;
  cut(part, tiles_of(std::min(rows->chunk_rows(lists), most_rows)), lists);
  return part;
}

void Decode::launch_rows(const AttendRows& args) const {
  const int most_heads = row_heads(strips_of(args.head_dim));
  int heads = 1;
  unsigned blocks = static_cast<unsigned>(args.values.parts);
  bool integers = false;  // whether any rows are
  for (const RowPart& part : args.parts) {
    if (part.pieces > 0 && part.lists == 1) heads = std::min(args.group, most_heads);
    blocks += static_cast<unsigned>(part.pieces * part.lists);
    const bool in_store = part.pieces > 0 && part.stored > 0 && (part.positions || part.begin < part.stored);
    integers = integers || (in_store && args.store.row_format != RowFormat::f16);
  }
  const RowKernel kernel = (integers ? row_kernel<true> : row_kernel<false>)(heads, args.head_dim);
  const auto shared = static_cast<unsigned>(
      attend_rows_shared_bytes(heads_of_kernel(heads), args.head_dim, integers, args.cached.places != nullptr));
  if (shared > kSharedBytes) allow_shared("attend_rows", kernel, shared);
  const dim3 grid(static_cast<unsigned>(cache_.kv_heads), blocks, blocks_for(args.group, most_heads));
  launch("attend_rows", kernel, {grid, dim3(kRowThreads), shared}, stream_, args);
}

void Decode::merge(float* out) const {
  const Stage stage(context_.stages, "merge", stream_);
  const int d = cache_.head_dim;
  MeanValue mean;
  mean.group = base_.group;
  if (what_.alpha) {
    mean.alpha = what_.alpha;
    mean.tokens = static_cast<float>(cache_.store.tokens + cache_.tail.tokens);
    mean.tail = base_.values.sums;
    mean.tail_parts = base_.values.parts;
    if (stored_) mean.stored = base_.store.value_sum;
  }
  with_most_components(d, [&](auto most) {
    launch("merge_states", merge_states<decltype(most)::value>,
           {dim3(static_cast<unsigned>(query_heads_)), dim3(kMergeThreads)}, stream_, base_.states, mean, what_.partial,
           cache_.sinks, d, out);
  });
}

}  // namespace

void CudaBackend::attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
                         Stream queue) {
  const cudaStream_t stream = native(queue);
  Decode(context_, cache, q, query_heads, what, stream).run(out);
}

// Steps behind one another that stream the same rows go together, as many as have room for their states.
void CudaBackend::attend_together(std::span<const AttendStep> steps, int query_heads, Stream queue) {
  const cudaStream_t stream = native(queue);
  while (!steps.empty()) {
    std::deque<Decode> group;
    std::uint64_t bytes = 0;
    const std::uint64_t room = context_.arena.room_for_step(2 * cuda_least_stream_bytes) / kShareOfStates;
    for (const AttendStep& step : steps) {
      group.emplace_back(context_, step.cache, step.q, query_heads, step.what, stream);
      bytes += group.back().most_state_bytes();
      if (group.size() > 1 && (bytes > room || !group.back().streams_as(group.front()))) {
        group.pop_back();
        break;
      }
    }
    Decode::run_together(group, steps.first(group.size()));
    steps = steps.subspan(group.size());
  }
}

}  // namespace hayloft::gpu::cuda
