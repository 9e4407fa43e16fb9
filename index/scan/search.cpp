#include "index/scan/search.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "index/scan/columns/column_scan.h"
#include "index/scan/columns/column_scores.h"
#include "index/scan/columns/quant_group_bounds.h"
#include "index/scan/kept_scores.h"
#include "index/scan/softmax.h"
#include "index/scan/top_positions.h"
#include "offload/error.h"

namespace hayloft::index {
namespace {

// The second pass over one list: finds the quantisation groups that can still hold a winner and scores them again.
class ListSelector {
 public:
  // Query heads [first, first + heads), which share a list.
  ListSelector(const offload::LayerView& view, const ColumnSearch& search, const ColumnScan& scan, int first, int heads)
      : search_(search),
        size_(search.sizes ? search.sizes[first / heads] : ListSize{search.limit, search.k}),
        scan_(scan),
        tokens_(view.tokens),
        first_(first),
        heads_(heads),
        tile_(scan.tile),
        stride_(ColumnScores::stride(scan.tile)),
        columns_(view, search, first / scan.group, first, heads, scan.tile),
        scores_(hwy::AllocateAligned<float>(static_cast<std::size_t>(heads) * static_cast<std::size_t>(stride_))),
        combined_(hwy::AllocateAligned<float>(static_cast<std::size_t>(tile_))),
        maxima_(hwy::AllocateAligned<float>(static_cast<std::size_t>(heads * (tile_ / quant_group_tokens)))),
        scratch_(hwy::AllocateAligned<float>(static_cast<std::size_t>(heads) * 16)),
        logits_row_(padded(std::max(size_.k, 1))),
        logits_(hwy::AllocateAligned<float>(static_cast<std::size_t>(heads) * static_cast<std::size_t>(logits_row_))) {
    std::fill_n(logits_.get(), heads_ * logits_row_, -infinity);
  }

  // positions [k], ascending. log_sums [heads] as for QuantGroupBounds. logits [heads][row], what the query heads gave
  // them, may be null.
  void select(std::span<const double> log_sums, std::int32_t* positions, float* logits, std::int64_t row) {
    if (size_.k == 0) return;
    const QuantGroupBounds bounds(scan_, search_.rule, first_, heads_, log_sums, size_.limit);
    // A quantisation group that the limit cuts may owe its maximum to a position past it.
    const auto whole = static_cast<std::size_t>(size_.limit / quant_group_tokens);
    const float least = kth_largest(bounds.lower().first(whole), size_.k);
    TopPositions top(size_.k, heads_, least);
    std::vector<Stretch> stretches;
    for (Stretch s = next_stretch(bounds.upper(), least, 0); s.begin < s.end;
         s = next_stretch(bounds.upper(), least, s.end)) {
      stretches.push_back(s);
    }
    constexpr std::size_t ahead = 3;
    for (std::size_t i = 0; i < stretches.size(); ++i) {
      if (i + ahead < stretches.size() && !stretches[i + ahead].single) {
        const Stretch& s = stretches[i + ahead];
        columns_.prefetch(s.begin, std::min(s.end, s.begin + quant_group_tokens));
      }
      if (stretches[i].single) {
        const float score = bounds.upper()[static_cast<std::size_t>(stretches[i].begin / quant_group_tokens)];
        top.offer(stretches[i].begin, 1, &score, &score, 1);
      } else {
        offer(stretches[i], bounds.offsets(), top);
      }
    }
    top.finish(positions, logits_.get(), logits_row_);
    for (int h = 0; h < heads_ && logits != nullptr; ++h) {
      std::copy_n(logits_.get() + h * logits_row_, size_.k, logits + h * row);
    }
  }

  // mass[h] = sum of exp(s - max[h]) over the selected positions and over [limit, tokens).
  void weigh(const float* max, float* mass) {
    std::vector<double> sums(static_cast<std::size_t>(heads_));
    for (int h = 0; h < heads_; ++h) {
      for (std::int64_t i = 0; i < logits_row_; i += tile_) {
        const std::int64_t n = std::min<std::int64_t>(tile_, logits_row_ - i);
        add_exponentials(logits_.get() + h * logits_row_ + i, 1, static_cast<int>(n), max + h, sums.data() + h);
      }
    }
    for (std::int64_t t = size_.limit / quant_group_tokens * quant_group_tokens; t < tokens_;) {
      const std::int64_t end = std::min(tokens_, (t / tile_ + 1) * tile_);
      columns_.score(t, end, scores_.get());
      for (int h = 0; h < heads_ && t < size_.limit; ++h) {
        std::fill_n(scores_.get() + static_cast<std::ptrdiff_t>(h) * stride_, size_.limit - t, -infinity);
      }
      add_exponentials(scores_.get(), heads_, static_cast<int>(padded(end - t)), max, sums.data());
      t = end;
    }
    std::copy(sums.begin(), sums.end(), mass);
  }

 private:
  // Positions of one tile, or the only one of its quantisation group that may be chosen. Empty at the end.
  struct Stretch {
    std::int64_t begin;
    std::int64_t end;
    bool single = false;
  };

  static std::int64_t padded(std::int64_t n) {
    return (n + quant_group_tokens - 1) / quant_group_tokens * quant_group_tokens;
  }

  // Returns the next stretch that may hold a score of at least `least` from position `from` on: a position that the
  // scan has placed, or as many quantisation groups as are neighbours within a tile.
  Stretch next_stretch(std::span<const float> upper, float least, std::int64_t from) const {
    const auto quant_groups = static_cast<std::int64_t>(upper.size());
    const auto hopeless = [&](std::int64_t i) { return upper[static_cast<std::size_t>(i)] < least; };  // not so for NaN
    std::int64_t i = (from + quant_group_tokens - 1) / quant_group_tokens;
    while (i < quant_groups && hopeless(i)) ++i;
    if (i == quant_groups) return {0, 0};
    if (has_one(i, least)) {
      const std::int64_t position = i * quant_group_tokens + scan_.head_places[first_ * scan_.quant_group_stride + i];
      return {position, position + 1, true};
    }
    const std::int64_t per_tile = tile_ / quant_group_tokens;
    const std::int64_t last = std::min(quant_groups, (i / per_tile + 1) * per_tile);
    const std::int64_t begin = i;
    while (i < last && !hopeless(i) && !has_one(i, least)) ++i;
    return {begin * quant_group_tokens, std::min(i * quant_group_tokens, size_.limit)};
  }

  // Only the largest of the quantisation group's scores reaches `least`. Not known of a quantisation group that the
  // limit cuts.
  bool has_one(std::int64_t quant_group, float least) const {
    return scan_.head_seconds != nullptr && (quant_group + 1) * quant_group_tokens <= size_.limit &&
           scan_.head_seconds[first_ * scan_.quant_group_stride + quant_group] < least;
  }

  void offer(const Stretch& s, std::span<const float> offsets, TopPositions& top) {
    const int n = static_cast<int>(s.end - s.begin);
    columns_.score(s.begin, s.end, scores_.get());
    const float* ranked = scores_.get();
    if (heads_ > 1) {
      group_scores(offsets.empty() ? GroupScore::logits : GroupScore::softmax, scores_.get(), stride_, heads_,
                   static_cast<int>(padded(n)), offsets.data(), combined_.get());
      ranked = combined_.get();
    }
    top.offer(s.begin, n, ranked, scores_.get(), stride_);
  }

  // Adds sum of exp(s - max[h]) over n tokens, a multiple of 64.
  void add_exponentials(const float* scores, int heads, int n, const float* max, double* sums) {
    TileNotes notes;
    notes.head_maxima = maxima_.get();
    notes.maxima_stride = tile_ / quant_group_tokens;
    notes.references = max;
    notes.sums = scratch_.get();
    std::fill_n(scratch_.get(), heads * 16, 0.0f);
    take_notes(scores, stride_, heads, n, notes);
    for (int h = 0; h < heads; ++h) {
      sums[h] += std::accumulate(scratch_.get() + h * 16, scratch_.get() + h * 16 + 16, 0.0f);
    }
  }

  const ColumnSearch& search_;
  const ListSize size_;
  const ColumnScan& scan_;
  std::int64_t tokens_;
  int first_;
  int heads_;
  int tile_;
  int stride_;
  ColumnScores columns_;
  hwy::AlignedFreeUniquePtr<float[]> scores_;    // [heads][stride]
  hwy::AlignedFreeUniquePtr<float[]> combined_;  // [tile]
  hwy::AlignedFreeUniquePtr<float[]> maxima_;    // [heads][quantisation groups of a tile]
  hwy::AlignedFreeUniquePtr<float[]> scratch_;   // [heads][16]
  std::int64_t logits_row_;
  hwy::AlignedFreeUniquePtr<float[]> logits_;  // [heads][logits_row] of the selected positions, -infinity beyond them
};

}  // namespace

void require_valid(const offload::LayerView& view, const ColumnSearch& search) {
  const offload::BlockLayout& layout = *view.layout;
  if (search.query_heads < layout.kv_heads || search.query_heads % layout.kv_heads != 0) {
    fail("column search: {} query heads cannot share {} KV heads; use a multiple", search.query_heads, layout.kv_heads);
  }
  if (search.rank < 1 || search.rank > layout.head_dim) {
    fail("column search: rank {} is out of range; use 1 to {}, the head dimension", search.rank, layout.head_dim);
  }
  if (search.limit < 0 || search.limit > view.tokens) {
    fail("column search: limit {} is out of range; the store holds {} tokens", search.limit, view.tokens);
  }
  if (search.k < 0 || search.k > search.limit) {
    fail("column search: k {} is out of range; use 0 to {}, the positions that may be selected", search.k,
         search.limit);
  }
  const int lists = search.lists(layout.kv_heads, search.query_heads);
  for (int list = 0; search.sizes != nullptr && list < lists; ++list) {
    const ListSize& size = search.sizes[list];
    if (size.limit < 0 || size.limit > search.limit || size.k < 0 ||
        size.k > std::min<std::int64_t>(search.k, size.limit)) {
      fail("column search: list {} asks for {} of {} positions; none has more than {} of {}", list, size.k, size.limit,
           search.k, search.limit);
    }
  }
}

void search_columns(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                    const SearchResult& result) {
  require_valid(view, search);
  if (result.kept != nullptr) result.kept->clear();
  if (view.tokens == 0) {
    if (result.mass != nullptr) std::fill_n(result.mass, search.query_heads, 0.0f);
    return;
  }
  const int group = search.query_heads / view.layout->kv_heads;
  const bool shared = !search.per_query_head();
  const bool softmax_scores = shared && group > 1 && search.rule == GroupRule::softmax;
  const bool with_softmax = result.max != nullptr || softmax_scores;

  const auto query_heads = static_cast<std::size_t>(search.query_heads);
  std::vector<float> max(query_heads, -infinity);
  std::vector<float> sum(query_heads, 0.0f);
  if (result.max != nullptr) {
    std::copy_n(result.max, query_heads, max.begin());
    std::copy_n(result.sum, query_heads, sum.begin());
  }
  const ColumnScan scan = scan_columns(view, search, threads, with_softmax, max.data(), sum.data(), result.kept);

  std::vector<double> log_sums(query_heads);
  for (std::size_t h = 0; with_softmax && h < query_heads; ++h) {
    const PartialSoftmax all = scan.softmax(static_cast<int>(h), {max[h], sum[h]});
    max[h] = all.max;
    sum[h] = static_cast<float>(all.sum);
    log_sums[h] = all.max + std::log(all.sum);
  }
  const int heads = shared ? group : 1;
  const std::int64_t lists = search.query_heads / heads;
  const auto select = [&] {
    threads.parallel_for(lists, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t list = begin; list < end; ++list) {
        const auto first = static_cast<std::size_t>(list * heads);
        ListSelector selector(view, search, scan, static_cast<int>(first), heads);
        float* const logits =
            result.logits == nullptr ? nullptr : result.logits + static_cast<std::int64_t>(first) * search.k;
        selector.select(std::span(log_sums).subspan(first, static_cast<std::size_t>(heads)),
                        result.positions + list * search.k, logits, search.k);
        if (result.mass != nullptr) selector.weigh(max.data() + first, result.mass + first);
      }
    });
    if (result.max == nullptr) return;
    std::copy(max.begin(), max.end(), result.max);
    std::copy(sum.begin(), sum.end(), result.sum);
  };
  select();
  if (result.again == nullptr || !(*result.again)(result.max, result.sum)) return;
  for (std::size_t h = 0; h < query_heads; ++h) {
    max[h] = result.max[h];
    sum[h] = result.sum[h];
    log_sums[h] = max[h] + std::log(static_cast<double>(sum[h]));
  }
  select();
}

void search_with_alpha(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                       const float* max, const float* sum, std::int32_t* positions, float* alpha, KeptScores* kept) {
  const auto heads = static_cast<std::size_t>(search.query_heads);
  std::vector<float> all_max(max, max + heads), all_sum(sum, sum + heads), mass(heads);
  search_columns(view, search, threads,
                 {positions, all_max.data(), all_sum.data(), mass.data(), nullptr, nullptr, kept});
  for (std::size_t h = 0; h < heads; ++h) {
    alpha[h] = attended_share(mass[h] + sum[h] * rescale(max[h], all_max[h]), all_sum[h]);
  }
}

void score_columns(const offload::LayerView& view, const ColumnSearch& search, int head, std::int64_t begin,
                   std::int64_t end, float* out) {
  const int group = search.query_heads / view.layout->kv_heads;
  const int tile = ColumnScores::tile_tokens(search, group);
  const int stride = ColumnScores::stride(tile);
  ColumnScores columns(view, search, head, head * group, group, tile);
  const auto scores = hwy::AllocateAligned<float>(static_cast<std::size_t>(group) * static_cast<std::size_t>(stride));
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t stop = std::min(end, (t / tile + 1) * tile);
    columns.score(t, stop, scores.get());
    for (int h = 0; h < group; ++h) {
      std::copy_n(scores.get() + static_cast<std::ptrdiff_t>(h) * stride, stop - t,
                  out + h * (end - begin) + (t - begin));
    }
    t = stop;
  }
}

}  // namespace hayloft::index
