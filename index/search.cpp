#include "index/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "index/column_scan.h"
#include "index/column_scores.h"
#include "index/subtile_bounds.h"
#include "index/top_positions.h"
#include "offload/error.h"

namespace hayloft::index {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

void check(const offload::LayerView& view, const ColumnSearch& search) {
  const offload::BlockLayout& layout = *view.layout;
  if (layout.columns != offload::ColumnFormat::f16) {
    fail("column search reads f16 columns, these are {}; keep f16 columns for this method",
         offload::name(layout.columns));
  }
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
}

// The second pass over one list: finds the subtiles that can still hold a winner and scores them again.
class ListSelector {
 public:
  // Query heads [first, first + heads), which share a list. log_sums [heads] as for SubtileBounds.
  ListSelector(const offload::LayerView& view, const ColumnSearch& search, const ColumnScan& scan, int first, int heads,
               std::span<const double> log_sums)
      : search_(search),
        tokens_(view.tokens),
        heads_(heads),
        tile_(ColumnScores::tile_tokens(heads)),
        stride_(ColumnScores::stride(heads)),
        columns_(view, search, first / scan.group, first, heads),
        bounds_(scan, search.rule, first, heads, log_sums, search.limit),
        scores_(hwy::AllocateAligned<float>(static_cast<std::size_t>(heads) * static_cast<std::size_t>(stride_))),
        combined_(hwy::AllocateAligned<float>(static_cast<std::size_t>(tile_))),
        scratch_(hwy::AllocateAligned<float>(static_cast<std::size_t>(heads) * 16)) {}

  // positions [k], ascending. Unless mass is null, mass[h] = sum of exp(s - max[h]) over them and over
  // [limit, tokens).
  void select(std::int32_t* positions, const float* max, float* mass) {
    // A subtile that the limit cuts may owe its maximum to a position past it.
    const auto whole = static_cast<std::size_t>(search_.limit / subtile_tokens);
    const float least = kth_largest(bounds_.lower().first(whole), search_.k);
    TopPositions top(search_.k, heads_, least);
    for (Stretch s = next_stretch(0, least); s.begin < s.end;) {
      const Stretch next = next_stretch(s.end, least);
      columns_.prefetch(next.begin, std::min(next.end, next.begin + subtile_tokens));
      offer(s, top);
      s = next;
    }
    const std::int64_t row = padded(search_.k);
    auto logits = hwy::AllocateAligned<float>(static_cast<std::size_t>(heads_) * static_cast<std::size_t>(row));
    std::fill_n(logits.get(), static_cast<std::int64_t>(heads_) * row, -infinity);
    top.finish(positions, logits.get(), row);
    if (mass == nullptr) return;

    std::vector<double> sums(static_cast<std::size_t>(heads_));
    for (int h = 0; h < heads_; ++h) {
      for (std::int64_t i = 0; i < row; i += tile_) {
        add_exp_sums(logits.get() + h * row + i, 1, static_cast<int>(std::min<std::int64_t>(tile_, row - i)), max + h,
                     sums.data() + h);
      }
    }
    for (std::int64_t t = search_.limit / subtile_tokens * subtile_tokens; t < tokens_;) {
      const std::int64_t end = std::min(tokens_, (t / tile_ + 1) * tile_);
      columns_.score(t, end, scores_.get());
      for (int h = 0; h < heads_ && t < search_.limit; ++h) {
        std::fill_n(scores_.get() + static_cast<std::ptrdiff_t>(h) * stride_, search_.limit - t, -infinity);
      }
      add_exp_sums(scores_.get(), heads_, static_cast<int>(padded(end - t)), max, sums.data());
      t = end;
    }
    std::copy(sums.begin(), sums.end(), mass);
  }

 private:
  struct Stretch {  // positions of one tile; empty at the end
    std::int64_t begin;
    std::int64_t end;
  };

  static std::int64_t padded(std::int64_t n) { return (n + subtile_tokens - 1) / subtile_tokens * subtile_tokens; }

  // The next subtiles, as many as are neighbours within a tile, that can hold a score of at least `least`.
  Stretch next_stretch(std::int64_t from, float least) const {
    const std::span<const float> upper = bounds_.upper();
    const auto subtiles = static_cast<std::int64_t>(upper.size());
    const auto hopeless = [&](std::int64_t i) { return upper[static_cast<std::size_t>(i)] < least; };  // not so for NaN
    std::int64_t i = (from + subtile_tokens - 1) / subtile_tokens;
    while (i < subtiles && hopeless(i)) ++i;
    const std::int64_t per_tile = tile_ / subtile_tokens;
    const std::int64_t last = std::min(subtiles, (i / per_tile + 1) * per_tile);
    const std::int64_t begin = i;
    while (i < last && !hopeless(i)) ++i;
    return {begin * subtile_tokens, std::min(i * subtile_tokens, search_.limit)};
  }

  void offer(const Stretch& s, TopPositions& top) {
    const int n = static_cast<int>(s.end - s.begin);
    columns_.score(s.begin, s.end, scores_.get());
    const float* ranked = scores_.get();
    if (heads_ > 1) {
      const bool softmax = !bounds_.offsets().empty();
      group_scores(softmax ? GroupScore::softmax : GroupScore::logits, scores_.get(), stride_, heads_,
                   static_cast<int>(padded(n)), bounds_.offsets().data(), combined_.get());
      ranked = combined_.get();
    }
    top.offer(s.begin, n, ranked, scores_.get(), stride_);
  }

  void add_exp_sums(const float* scores, int heads, int n, const float* max, double* sums) {
    std::vector<float> partial(static_cast<std::size_t>(heads));
    exp_sums(scores, stride_, heads, n, max, scratch_.get(), partial.data(), nullptr);
    for (int h = 0; h < heads; ++h) sums[h] += partial[static_cast<std::size_t>(h)];
  }

  const ColumnSearch& search_;
  std::int64_t tokens_;
  int heads_;
  int tile_;
  int stride_;
  ColumnScores columns_;
  SubtileBounds bounds_;
  hwy::AlignedFreeUniquePtr<float[]> scores_;    // [heads][stride]
  hwy::AlignedFreeUniquePtr<float[]> combined_;  // [tile]
  hwy::AlignedFreeUniquePtr<float[]> scratch_;   // [heads][16]
};

// Adds the store's softmax to the caller's and returns the log-sum-exp of both.
double merge_state(const ColumnScan::State& store, float& max, float& sum) {
  const float outside_max = max;
  const double outside_sum = sum;
  max = std::max(outside_max, store.max);
  double total = 0;
  if (outside_sum != 0) total += outside_sum * std::exp(static_cast<double>(outside_max) - max);
  if (store.sum != 0) total += store.sum * std::exp(static_cast<double>(store.max) - max);
  sum = static_cast<float>(total);
  return max + std::log(total);
}

}  // namespace

void search_columns(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                    const SearchResult& result) {
  check(view, search);
  const int group = search.query_heads / view.layout->kv_heads;
  const bool shared = search.per == SelectPer::kv_head;
  const bool softmax_scores = shared && group > 1 && search.rule == GroupRule::softmax;
  const bool with_softmax = result.max != nullptr || softmax_scores;

  const auto query_heads = static_cast<std::size_t>(search.query_heads);
  std::vector<float> max(query_heads, -infinity);
  std::vector<float> sum(query_heads, 0.0f);
  if (result.max != nullptr) {
    std::copy_n(result.max, query_heads, max.begin());
    std::copy_n(result.sum, query_heads, sum.begin());
  }
  const ColumnScan scan = scan_columns(view, search, threads, with_softmax, max.data(), sum.data());

  const int heads = shared ? group : 1;
  const std::int64_t lists = search.query_heads / heads;
  threads.parallel_for(lists, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> log_sums(static_cast<std::size_t>(heads));
    for (std::int64_t list = begin; list < end; ++list) {
      const auto first = static_cast<std::size_t>(list * heads);
      for (std::size_t h = 0; with_softmax && h < log_sums.size(); ++h) {
        log_sums[h] = merge_state(scan.state(static_cast<int>(first + h)), max[first + h], sum[first + h]);
      }
      ListSelector selector(view, search, scan, static_cast<int>(first), heads, log_sums);
      selector.select(result.positions + list * search.k, max.data() + first,
                      result.mass != nullptr ? result.mass + first : nullptr);
    }
  });
  if (result.max != nullptr) {
    std::copy(max.begin(), max.end(), result.max);
    std::copy(sum.begin(), sum.end(), result.sum);
  }
}

void score_columns(const offload::LayerView& view, const ColumnSearch& search, int head, std::int64_t begin,
                   std::int64_t end, float* out) {
  const int group = search.query_heads / view.layout->kv_heads;
  const int tile = ColumnScores::tile_tokens(group);
  const int stride = ColumnScores::stride(group);
  const ColumnScores columns(view, search, head, head * group, group);
  const auto scores = hwy::AllocateAligned<float>(static_cast<std::size_t>(group) * static_cast<std::size_t>(stride));
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t stop = std::min(end, (t / tile + 1) * tile);
    columns.score(t, stop, scores.get());
    for (int h = 0; h < group; ++h) {
      std::copy_n(scores.get() + static_cast<std::ptrdiff_t>(h) * stride, stop - t, out + h * (end - begin) + (t - begin));
    }
    t = stop;
  }
}

}  // namespace hayloft::index
