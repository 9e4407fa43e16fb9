#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/cuda/api/fetch.h"
#include "gpu/cuda/api/stage_clock.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/ahead.h"
#include "gpu/cuda/kernels/select/components.h"
#include "gpu/cuda/kernels/select/group_scores.cuh"
#include "gpu/cuda/kernels/select/place_runs.h"
#include "gpu/cuda/kernels/select/radix_select.h"
#include "gpu/cuda/kernels/select/scan.h"
#include "gpu/cuda/kernels/select/stretches.h"
#include "gpu/cuda/kernels/select/strips.h"
#include "gpu/cuda/memory/ahead_columns.h"
#include "gpu/cuda/memory/column_cache.h"
#include "gpu/cuda/memory/column_tiles.h"
#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda_memory.h"
#include "index/scan/columns/plane_weights.h"
#include "index/scan/sparq_query.h"

// SparQ's step 1 and its selection. Beside the r columns that come over the link it reads and writes device memory: the
// scan writes Hq f32 per position while it waits for the link; then one pass reads those and writes Hkv keys, and those
// of the selection read the keys of the chunks that matter, up to four times. At 1M tokens, Hq = 32, Hkv = 8, k = 1024:
// 128 MiB read and 32 MiB written by the first, 32 MiB read by the others (a fourth of the chunks, four times), 8 MiB
// of partial softmaxes and tallies: 200 MiB, 0.7 ms at 300 GB/s, where the r = 16 f16 columns are 256 MiB, 10.7 ms at
// 25 GB/s. The link hides none of that where the device has the columns: the scan then keeps bounds of strips
// (strips.h).
namespace hayloft::gpu::cuda {
namespace {

static_assert(kChunkKeys == kChunkTokens);

// Bounds the memory of logits and keys, (g + 1) * 4 bytes per position and KV head: as many KV heads at a time as fit,
// one at least. All 8 of a Llama-3-8B up to 1.6M tokens, 3 at a time at 4M; less where the budget is small.
constexpr std::uint64_t kBatchesPerBudget = 64;

// So many blocks of threads for each multiprocessor place what is chosen, each of which chooses anew.
constexpr int kPlaceBlocks = 4;

// With Link::both, tokens read in place for each token copied.
constexpr std::int64_t kInPlacePerCopied = 1;

// Returns how chosen columns of a pinned store come: as asked for, unless copies of them would be too short.
Link link_over(const Context& context, const offload::LayerView& store, const ColumnCount& count) {
  const Link asked = context.link.of(store.layout->columns);
  if (asked == Link::sm || context.least_copy_bytes == 0) return asked;
  return bytes_per_copy(context.pins, store, count) < context.least_copy_bytes ? Link::sm : asked;
}

ColumnCount column_count(const offload::BlockLayout& layout, const SparqSelect& args) {
  const int columns = args.components(layout.head_dim);
  if (!in_planes(layout.columns)) return {columns, columns};
  const int all = offload::plane_count * layout.head_dim;
  return {columns, args.bits > 0 ? std::min(args.bits, all) : offload::plane_count * columns};
}

// One selection: the choice of components for all heads, then everything else for as many KV heads at a time as
// fit the scratch memory.
class SparqSelector {
 public:
  SparqSelector(const Context& context, const CacheView& cache, const float* q, int query_heads,
                const SparqSelect& args, cudaStream_t stream)
      : context_(context),
        cache_(cache),
        args_(args),
        stream_(stream),
        group_(query_heads / cache.kv_heads),
        count_(column_count(*cache.store.layout, args)),
        store_chunks_(chunks_of(cache.store.tokens)),
        tail_chunks_(chunks_of(cache.tail.tokens)),
        heads_at_once_(heads_that_fit()),
        chosen_(context, chosen_count(), stream),
        weights_(context, std::int64_t{query_heads} * count_.columns, stream),
        logits_(context, args.scores ? 1 : heads_at_once_ * group_ * stride(), stream),
        partials_(context, 2 * heads_at_once_ * group_ * partial_stride(), stream),
        softmax_(context, heads_at_once_ * group_, stream),
        keys_(context, heads_at_once_ * stride(), stream),
        key_chunk_max_(context, heads_at_once_ * partial_stride(), stream),
        passes_(context, heads_at_once_, stream) {
    const Stage stage(context.stages, "components", stream);
    scan_.components = chosen_;
    if (args.bits > 0) scan_.planes = chosen_ + cache.kv_heads * count_.columns;
    scan_.weights = weights_;
    scan_.rank = count_.columns;
    scan_.plane_total = count_.runs;
    scan_.plane_units = index::plane_units(count_.columns);
    scan_.group = group_;
    scan_.stride = stride();
    scan_.partials = {partials_, partials_ + heads_at_once_ * group_ * partial_stride(), partial_stride()};
    stretches_ = stretches_of(context.tables.runs(cache.store), cache.store);
    const bool staged = !std::ranges::all_of(stretches_, &Stretch::in_place);
    if (std::ranges::any_of(stretches_, &Stretch::in_place)) {
      link_ = link_over(context, cache.store, count_);
      if (link_ != Link::copy) source_ = columns_in_place(context.tables.find(cache.store, stream));
    }
    if (link_ != Link::sm || staged) {
      choose(q);
      host_chosen_ = fetch(chosen_.data(), chosen_count(), stream);
      std::optional<HostGather> gather;
      if (staged) gather.emplace(HostGather{context.staging, context.threads});
      tiles_.emplace(context, cache.store, host_chosen_, count_, gather, stream);
    } else {
      take_cached(q);
    }
  }

  void run(std::int32_t* positions, float* alpha) {
    const SparqPart& part = args_.part;
    find(positions, alpha, true, part.again == nullptr);
    if (part.again != nullptr && (*part.again)()) find(positions, alpha, heads_at_once_ < cache_.kv_heads, true);
    if (cached_) cached_->done();
  }

 private:
  std::int64_t stride() const { return store_chunks_ * kChunkTokens; }
  std::int64_t partial_stride() const { return store_chunks_ + tail_chunks_; }

  // A batch of KV heads after the other; `scans`: or there is one, whose scores are kept. given: ranks by ranked_by.
  void find(std::int32_t* positions, float* alpha, bool scans, bool given) {
    for (int first = 0; first < cache_.kv_heads; first += heads_at_once_) {
      const int heads = std::min(heads_at_once_, cache_.kv_heads - first);
      first_logits_ = args_.scores ? args_.scores + std::int64_t{first} * group_ * stride() : logits_.data();
      const SparqPart part = part_from(first);
      if (!std::exchange(cleared_, false)) passes_.clear();
      const Normalising normalising = normalising_of(first, given ? part.ranked_by : SoftmaxPart());
      const bool normalised = scans && scan(first, heads, normalising);
      std::int32_t* const lists = positions + static_cast<std::int64_t>(first) * args_.k;
      float* const weighs = part.wanted() ? nullptr : alpha + static_cast<std::int64_t>(first) * group_;
      const Logits in = select(first, heads, normalised ? Normalising() : normalising, lists, weighs);
      if (!part.wanted()) continue;
      const std::int32_t* const places = strips_ ? strips_->places() : lists;
      launch("tell_part", tell_part, {static_cast<unsigned>(heads * group_), kSelectThreads}, stream_, in, softmax_,
             places, args_.k, args_.limit, cache_.store.tokens, part);
    }
  }

  // Returns the part from KV head `first` on.
  SparqPart part_from(int first) const {
    SparqPart part = args_.part;
    if (!part.wanted()) return {};
    const std::int64_t heads = std::int64_t{first} * group_;
    part.logits += heads * args_.k;
    for (SoftmaxPart* softmax : {&part.all, &part.attended, &part.ranked_by}) {
      if (softmax->max == nullptr) continue;
      softmax->max += heads;
      softmax->sum += heads;
    }
    return part;
  }

  // Components, and how many planes of each where they are not read whole.
  std::int64_t chosen_count() const {
    return std::int64_t{cache_.kv_heads} * count_.columns * (args_.bits > 0 ? 2 : 1);
  }

  void choose(const float* q, const RunPlacing& placing = {}) {
    ComponentChoice choice;
    choice.rank = count_.columns;
    choice.bits = args_.bits;
    choice.temperature = args_.temperature;
    if (ahead_ && !ahead_->fetched()) choice.left = ahead_->choices();
    if (ahead_) choice.stop = ahead_->stop();
    if (args_.needs_planes()) choice.spread = context_.tables.find(cache_.store, stream_).spread;
    tail_scored_ = choose_components(
        q, cache_.kv_heads, group_, cache_.head_dim, choice, {cache_.tail, heads_at_once_, tail_partials()}, chosen_,
        args_.bits > 0 ? chosen_ + cache_.kv_heads * count_.columns : nullptr, weights_, stream_, placing,
        std::max(1, kPlaceBlocks * context_.multiprocessors / cache_.kv_heads), passes_.cleared());
    cleared_ = true;
  }

  PartialSoftmax tail_partials() const {
    const PartialSoftmax& all = scan_.partials;
    return {all.max + store_chunks_, all.sum + store_chunks_, all.stride};
  }

  // Chooses components, and takes what the device keeps of their columns. Comes last of what takes memory, which might
  // else be taken of that.
  void take_cached(const float* q) {
    const offload::LayerView& store = cache_.store;
    if (!context_.columns.keeps(store)) return choose(q);
    const auto blocks = static_cast<std::int64_t>(store.blocks.size());
    places_.emplace(context_, blocks * cache_.kv_heads * count_.runs, stream_);
    if (wants_strips()) {
      strips_.emplace(context_, heads_at_once_, group_, ranks_by_logits(), store.tokens, args_.k, stream_);
    }
    if (!in_planes(store.layout->columns)) ahead_ = context_.ahead.use(store, count_.columns, stream_);
    cached_ = context_.columns.use(cache_, stream_);
    if (!cached_ || !cuda_keeps_strips(cached_->slots(), count_.runs, cache_.head_dim)) strips_.reset();
    const RunLayout layout(*store.layout);
    RunPlacing placing;
    if (cached_) {
      source_.cached = {cached_->blocks(), *places_, cache_.kv_heads, count_.runs};
      const RunReads reads{scan_.components, scan_.planes,    count_.columns, in_planes(store.layout->columns),
                           store.tokens,     args_.held_bytes};
      placing = {layout, reads, source_.cached, *places_, blocks};
    }
    const bool whole = !in_planes(store.layout->columns);  // planes take longer to choose than a launch takes
    choose(q, whole ? placing : RunPlacing());
    if (cached_ && !whole) place_planes(placing, stream_);
    if (strips_) {
      scan_.strip_max = strips_->max();
      scan_.strip_stride = strips_->stride();
      scan_.strip_sums = strips_->sums();
    }
    if (!ahead_) return;
    const AheadReads reads{chosen_, count_.columns, store.tokens, blocks, args_.ahead_bytes};
    const bool all_kept = cached_ && cached_->slots() >= layout.runs;
    if (ahead_->fetched()) take_ahead(*ahead_, reads, layout, *places_, source_.cached, stream_);
    ahead_->left(!all_kept);
  }

  int heads_that_fit() const {
    const std::int64_t numbers = stride() * (group_ + 1) + strips_of(stride()) * (group_ + 3);  // StripBounds' too
    const std::uint64_t each = static_cast<std::uint64_t>(numbers) * sizeof(float);
    const std::uint64_t most = std::min(cuda_selection_bytes, context_.arena.budget_bytes() / kBatchesPerBudget);
    return static_cast<int>(std::clamp<std::uint64_t>(most / each, 1, static_cast<unsigned>(cache_.kv_heads)));
  }

  bool ranks_by_logits() const { return group_ == 1 || args_.rule == index::GroupRule::logits; }

  // Decides, here alone, whether the scan keeps bounds of strips in place of logits where the device has the columns. A
  // rest that is estimated asks for the scores of all positions, which are logits.
  bool wants_strips() const {
    const offload::ColumnFormat of = cache_.store.layout->columns;
    return !args_.scores && cuda_wants_strips(args_.limit, args_.k, group_, of) &&
           strips_fit(context_, of, count_.columns, group_);
  }

  // The softmaxes of the query heads from KV head `first` on.
  Normalising normalising_of(int first, const SoftmaxPart& ranked_by) const {
    return {store_chunks_,
            tail_chunks_,
            chunks_of(args_.limit),
            ranked_by,
            cache_.sinks ? cache_.sinks + std::int64_t{first} * group_ : nullptr,
            softmax_,
            passes_.counters(2)};
  }

  // Logits and partial softmaxes of KV heads [first, first + heads). Returns whether it has normalised them, too.
  bool scan(int first, int heads, const Normalising& normalising) {
    if (!std::exchange(tail_scored_, false)) {
      const Stage stage(context_.stages, "tail scores", stream_);
      sum_tail(cache_.tail, cache_.head_dim, chosen_, weights_, count_.columns, group_, first, heads, tail_partials(),
               stream_);
    }
    const Stage stage(context_.stages, "column scan", stream_);
    scan_.first_head = first;
    scan_.logits = strips_ ? nullptr : first_logits_;
    if (tiles_) {
      scan_tiles(first, heads);
      return false;
    }
    const bool normalises = group_ <= cuda_most_normalised_heads && group_ * partial_stride() <= cuda_most_normalised &&
                            !in_planes(cache_.store.layout->columns);
    scan_range(source_, {first, 0, cache_.store.tokens}, heads, normalises ? normalising : Normalising());
    return normalises;
  }

  void scan_range(const ColumnSource& source, const ColumnRange& range, int heads,
                  const Normalising& normalising = {}) {
    ColumnScan scan = scan_;
    scan.head = range.head;
    scan.begin = range.begin;
    scan.end = range.end;
    launch_scan(context_, cache_.store.layout->columns, source, scan, heads, stream_, normalising);
  }

  // Columns that are not read in place come in tiles. With Link::both some of the tiles' turns are read in place: while
  // a tile is being copied the multiprocessors read the ones before and after it.
  void scan_tiles(int first, int heads) {
    std::vector<ColumnRange> copied;
    std::vector<std::pair<std::size_t, ColumnRange>> here;  // before which of the copied ones
    std::int64_t turn = 0;
    for (int head = first; head < first + heads; ++head) {
      for (const Stretch& stretch : stretches_) {
        if (stretch.in_place && link_ == Link::sm) {
          here.emplace_back(copied.size(), ColumnRange{head, stretch.begin, stretch.end});
          continue;
        }
        const std::int64_t in_place_per_copied = stretch.in_place && link_ == Link::both ? kInPlacePerCopied : 0;
        for (std::int64_t begin = stretch.begin; begin < stretch.end; begin += tiles_->tokens(), ++turn) {
          const ColumnRange range{head, begin, std::min(begin + tiles_->tokens(), stretch.end), !stretch.in_place};
          if (turn % (1 + in_place_per_copied) == 0) {
            copied.push_back(range);
          } else {
            here.emplace_back(copied.size(), range);
          }
        }
      }
    }
    tiles_->fetch(copied[0]);
    auto next_here = here.begin();
    for (std::size_t i = 0; i < copied.size(); ++i) {
      const ColumnSource source = tiles_->ready();
      if (i + 1 < copied.size()) tiles_->fetch(copied[i + 1]);
      for (; next_here != here.end() && next_here->first <= i + 1; ++next_here) {
        scan_range(source_, next_here->second, 1);
      }
      scan_range(source, copied[i], 1);
    }
  }

  // Selects for the KV heads from `first` on, behind their softmaxes, if these are still to be made, and weighs that
  // into `alpha`, where there is one. Returns the logits that there are.
  Logits select(int first, int lists, const Normalising& normalising, std::int32_t* positions, float* alpha) {
    const Stage stage(context_.stages, "selection", stream_);
    Logits in{first_logits_, stride(), group_};
    const auto all = static_cast<unsigned>(lists);
    if (normalising.out) {
      launch("normalise", normalise, {all * static_cast<unsigned>(group_), kSelectThreads}, stream_, scan_.partials,
             normalising);
    }
    Weighing weighing{in, softmax_, args_.limit, cache_.store.tokens, alpha};
    if (args_.k == 0) {
      if (alpha) launch("weigh_selection", weigh_selection, {all, kSelectThreads}, stream_, weighing);
      return in;
    }
    Keys keys{keys_, key_chunk_max_, stride(), partial_stride(), args_.limit};
    if (strips_) {
      weighing.in.strips = in.strips = keys.strips =
          strips_->list(softmax_, lists, args_.k, args_.limit, passes_.counters(1));
      keys.places = strips_->places();
      ColumnScan again = scan_;
      again.head = first;
      again.end = cache_.store.tokens;
      again.logits = first_logits_;
      const StripRank rank{in.strips, softmax_, ranks_by_logits(), keys_, key_chunk_max_, passes_.histogram(0)};
      launch_rank_strips(context_, cache_.store.layout->columns, source_, again, rank, lists, stream_);
    } else {
      const unsigned offsets = static_cast<unsigned>(group_) * sizeof(float);
      launch("rank_positions", rank_positions, {passes_.pass_grid(lists, args_.limit), kSelectThreads, offsets},
             stream_, in, softmax_, ranks_by_logits(), args_.limit, keys_, key_chunk_max_, partial_stride(),
             passes_.histogram(0));
    }
    passes_.select(keys, lists, args_.k, positions, weighing);
    return in;
  }

  const Context& context_;
  const CacheView& cache_;
  const SparqSelect& args_;
  cudaStream_t stream_;
  int group_;
  ColumnCount count_;
  std::int64_t store_chunks_;
  std::int64_t tail_chunks_;
  int heads_at_once_;

  Scratch<std::int32_t> chosen_;  // components [Hkv][r], then planes likewise
  Scratch<float> weights_;        // [Hq][r]
  // For the heads of one batch:
  Scratch<float> logits_;            // [heads g][stride], unless the scores of all are kept
  Scratch<float> partials_;          // [2][heads g][partial_stride]: largest, sum
  Scratch<HeadSoftmax> softmax_;     // [heads g]
  Scratch<unsigned> keys_;           // [heads][stride]
  Scratch<unsigned> key_chunk_max_;  // [heads][partial_stride]
  RadixSelect passes_;               // of the heads' lists

  ColumnScan scan_;
  std::vector<Stretch> stretches_;     // of the store
  Link link_ = Link::sm;               // how those come that could be read in place
  ColumnSource source_;                // where columns are read in place
  float* first_logits_ = nullptr;      // of the batch
  bool tail_scored_ = false;           // of the first batch, whose scan is still to come
  bool cleared_ = false;               // what its passes count in
  std::optional<StripBounds> strips_;  // in place of logits
  std::optional<Scratch<std::uint32_t>> places_;
  std::unique_ptr<AheadColumns::Use> ahead_;
  std::unique_ptr<ColumnCache::Use> cached_;
  std::vector<std::int32_t> host_chosen_;
  std::optional<ColumnTiles> tiles_;
};

}  // namespace

void CudaBackend::select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                               std::int32_t* positions, float* alpha, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (args.needs_planes()) index::require_planes(cache.store.layout->columns);
  if (cache.store.tokens == 0) {  // nothing to select from
    launch("attend_all", attend_all, {blocks_for(query_heads, kSelectThreads), kSelectThreads}, stream, query_heads,
           alpha);
    return;
  }
  index::ColumnSearch search;
  search.query_heads = query_heads;
  search.rank = args.components(cache.head_dim);
  search.limit = args.limit;
  search.k = args.k;
  index::require_valid(cache.store, search);
  SparqSelector(context_, cache, q, query_heads, args, stream).run(positions, alpha);
}

}  // namespace hayloft::gpu::cuda
