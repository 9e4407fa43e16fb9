#include "runtime/attention/select_over_ranks.h"

#include <algorithm>
#include <cmath>

#include "index/scan/exact_search.h"
#include "index/scan/softmax.h"
#include "runtime/attention/over_ranks.h"
#include "runtime/cluster/candidates.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// (max, sum) of each query head.
struct Softmax {
  explicit Softmax(int query_heads)
      : max(static_cast<std::size_t>(query_heads), -infinity), sum(static_cast<std::size_t>(query_heads)) {}

  void add(std::size_t head, float other_max, float other_sum) {
    index::merge_sums(max[head], sum[head], other_max, other_sum);
  }
  double log_sum(std::size_t head) const { return max[head] + std::log(static_cast<double>(sum[head])); }

  std::vector<float> max;
  std::vector<float> sum;
};

// One step's search, on one rank.
class RankSearch {
 public:
  RankSearch(const Step& step, const SelectionPlan& plan, const RankedBy& by)
      : step_(step),
        plan_(plan),
        by_(by),
        part_(step.cache),
        view_(by.derived ? *by.derived : part_.cache().store),
        limit_(part_.own(plan.limit * by.entry_tokens) / by.entry_tokens),
        heads_(plan.lists == step.query_heads ? 1 : step.query_heads / step.kv_heads()),
        by_softmax_(heads_ > 1 && by.rule == index::GroupRule::softmax),
        all_(step.query_heads),
        attended_(step.query_heads) {}

  Selection select() {
    const bool with_softmax = by_.with_alpha || by_softmax_;
    if (with_softmax) see_tail();
    if (by_.with_alpha) see_late();
    for (std::size_t h = 0; h < all_.max.size(); ++h) {
      // The tail alone: the scan adds the store, what lies past the limit included.
      all_.max[h] = tail_max_.empty() ? -infinity : tail_max_[h];
      all_.sum[h] = tail_sum_.empty() ? 0 : tail_sum_[h];
    }
    const cluster::Candidates own = search_own(with_softmax);
    const bool ride = with_softmax && !by_softmax_;  // the sums go with the candidates
    std::vector<float> notes;
    const cluster::Candidates best = cluster::best_of_all(
        *step_.ranks, own, [this](int list, std::span<const float> logits) { return score(list, logits); },
        step_.backend.threads(), ride ? sums() : std::vector<float>(), &notes);
    if (ride) take_sums(notes);
    Selection selection{best.positions, {}};
    if (by_.with_alpha) selection.alpha = alpha(best);
    return selection;
  }

 private:
  // (max, sum) over the tail, by the rank that attends to it. Attention with queries that are zero outside the chosen
  // components has the approximate logits for its own, but for the scale.
  void see_tail() {
    if (!by_.tail || !part_.has_tail() || step_.cache.tail.tokens == 0) return;
    const std::vector<float> q = tail_query();
    const gpu::Buffer on_device = step_.backend.allocate(q.size() * sizeof(float), step_.stream);
    step_.backend.to_device(on_device.as<void>(), q.data(), on_device.bytes(), step_.stream);
    gpu::Attended tail;
    tail.ranges[0] = {part_.cache().store.tokens, part_.cache().tokens()};
    cluster::AttentionParts seen = attend_part(step_, part_, on_device.as<float>(), tail);
    tail_max_.assign(seen.max(), seen.max() + step_.query_heads);
    tail_sum_.assign(seen.sum(), seen.sum() + step_.query_heads);
    for (std::size_t h = 0; h < tail_max_.size(); ++h) attended_.add(h, tail_max_[h], tail_sum_[h]);
  }

  std::vector<float> tail_query() const {
    const int d = step_.head_dim();
    std::vector<float> q = by_.tail_weights;
    if (q.empty()) {
      const int group = step_.query_heads / step_.kv_heads();
      q.resize(static_cast<std::size_t>(step_.query_elements()));
      for (int h = 0; h < step_.query_heads; ++h) {
        for (int j = 0; j < by_.rank; ++j) {
          const std::int32_t component = by_.components[static_cast<std::size_t>(h / group * by_.rank + j)];
          q[static_cast<std::size_t>(h * d + component)] = by_.weights[static_cast<std::size_t>(h * by_.rank + j)];
        }
      }
    }
    for (float& x : q) x /= index::exact_scale(d);
    return q;
  }

  // (max, sum) over own positions from the limit on, which are attended to whatever they score.
  void see_late() {
    if (limit_ == view_.tokens) return;
    const std::int64_t begin = limit_ / 64 * 64;
    const std::int64_t count = view_.tokens - begin;
    const int group = step_.query_heads / step_.kv_heads();
    std::vector<float> scores(static_cast<std::size_t>(group * count));
    const index::ColumnSearch search = column_search(view_.tokens, 0);
    for (int head = 0; head < step_.kv_heads(); ++head) {
      index::score_columns(view_, search, head, begin, view_.tokens, scores.data());
      for (int h = 0; h < group; ++h) {
        for (std::int64_t t = limit_ - begin; t < count; ++t) {
          attended_.add(static_cast<std::size_t>(head * group + h), scores[static_cast<std::size_t>(h * count + t)], 1);
        }
      }
    }
  }

  index::ColumnSearch column_search(std::int64_t limit, int k) const {
    index::ColumnSearch search;
    search.query_heads = step_.query_heads;
    search.rank = by_.rank;
    search.components = by_.components.data();
    if (!by_.planes.empty()) search.planes = by_.planes.data();
    search.weights = by_.weights.data();
    search.limit = limit;
    search.k = k;
    search.rule = by_.rule;
    search.per = by_.per;
    search.keys = by_.keys;
    return search;
  }

  // The best own positions, as whole ones; all_ becomes the softmax over the own store and, by softmaxes, over all.
  cluster::Candidates search_own(bool with_softmax) {
    const auto k = static_cast<int>(std::min<std::int64_t>(plan_.k, limit_));
    cluster::Candidates own(plan_.lists, heads_, plan_.k);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(plan_.lists) * static_cast<std::size_t>(k));
    std::vector<float> logits(positions.size() * static_cast<std::size_t>(heads_));
    const std::function<void(float*, float*)> widen = [this](float* max, float* sum) { this->widen(max, sum); };
    index::SearchResult result;
    result.positions = positions.data();
    result.logits = logits.data();
    if (with_softmax) {
      result.max = all_.max.data();
      result.sum = all_.sum.data();
    }
    if (by_softmax_) result.widen = &widen;
    if (view_.tokens > 0 && (k > 0 || with_softmax)) {
      index::search_columns(view_, column_search(limit_, k), step_.backend.threads(), result);
    } else if (by_softmax_) {  // the others wait
      exchange_sums();
    }
    const auto row = static_cast<std::size_t>(k), wide = static_cast<std::size_t>(plan_.k);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      own.positions[i / row * wide + i % row] = whole(positions[i]);
    }
    for (std::size_t i = 0; i < logits.size(); ++i) own.logits[i / row * wide + i % row] = logits[i];
    return own;
  }

  std::int32_t whole(std::int32_t own) const {
    return static_cast<std::int32_t>(part_.whole(std::int64_t{own} * by_.entry_tokens) / by_.entry_tokens);
  }

  // What this rank tells of the softmaxes: [Hq] of max and sum over its own positions, then of those attended anyway.
  std::vector<float> sums() const {
    std::vector<float> values;
    for (const std::vector<float>* part : {&all_.max, &all_.sum, &attended_.max, &attended_.sum}) {
      values.insert(values.end(), part->begin(), part->end());
    }
    return values;
  }

  // Of all ranks, [ranks][4 Hq].
  void take_sums(const std::vector<float>& of_ranks) {
    const std::size_t n = all_.max.size();
    for (Softmax* softmax : {&all_, &attended_}) {  // in place: a search may be writing there
      std::ranges::fill(softmax->max, -infinity);
      std::ranges::fill(softmax->sum, 0.0f);
    }
    for (std::size_t first = 0; first < of_ranks.size(); first += 4 * n) {
      for (std::size_t h = 0; h < n; ++h) {
        const float* const own = of_ranks.data() + first + h;
        all_.add(h, own[0], own[n]);
        attended_.add(h, own[2 * n], own[3 * n]);
      }
    }
  }

  void widen(float* max, float* sum) {
    std::copy_n(max, all_.max.size(), all_.max.begin());
    std::copy_n(sum, all_.sum.size(), all_.sum.begin());
    exchange_sums();
    std::ranges::copy(all_.max, max);
    std::ranges::copy(all_.sum, sum);
  }

  void exchange_sums() {
    const std::vector<float> own = sums();
    std::vector<float> of_ranks(own.size() * static_cast<std::size_t>(step_.ranks->ranks()));
    step_.ranks->all_gather(cluster::Traffic::masses, std::as_bytes(std::span(own)),
                            std::as_writable_bytes(std::span(of_ranks)));
    take_sums(of_ranks);
  }

  float score(int list, std::span<const float> logits) const {
    if (heads_ == 1) return logits.front();
    float sum = 0;
    for (std::size_t h = 0; h < logits.size(); ++h) {
      const std::size_t head = static_cast<std::size_t>(list) * logits.size() + h;
      sum += by_softmax_ ? std::exp(logits[h] - static_cast<float>(all_.log_sum(head))) : logits[h];
    }
    return sum;
  }

  // The share of the softmax that lies on what is attended, [Hq].
  std::vector<float> alpha(const cluster::Candidates& best) const {
    std::vector<float> share(all_.max.size());
    for (std::size_t h = 0; h < share.size(); ++h) {
      double mass = attended_.sum[h] * index::rescale(attended_.max[h], all_.max[h]);
      const std::size_t list = h / static_cast<std::size_t>(heads_);
      for (std::size_t i = 0; i < static_cast<std::size_t>(best.k); ++i) {
        if (best.positions[list * static_cast<std::size_t>(best.k) + i] < 0) continue;
        mass += std::exp(best.logits[h * static_cast<std::size_t>(best.k) + i] - all_.max[h]);
      }
      share[h] = std::min(static_cast<float>(mass / all_.sum[h]), 1.0f);  // rounding alone can take it past one
    }
    return share;
  }

  const Step& step_;
  const SelectionPlan& plan_;
  const RankedBy& by_;
  cluster::Part part_;
  offload::LayerView view_;  // what is searched, of own positions
  std::int64_t limit_;       // own entries from here on are attended anyway
  int heads_;                // that share a list
  bool by_softmax_;          // whether they rank by softmaxes, which need the sums of all ranks
  Softmax all_;
  Softmax attended_;             // over what is attended whatever it scores
  std::vector<float> tail_max_;  // [Hq], empty without a tail
  std::vector<float> tail_sum_;
};

}  // namespace

void attend_selection_over_ranks(const Step& step, const SelectionPlan& plan, const float* q,
                                 const Selection& selection, bool mean_value, float* out) {
  const bool blends = mean_value && !selection.alpha.empty();
  attend_over_ranks(step, plan, q, selection.positions, blends ? selection.alpha.data() : nullptr, out);
  if (step.trace != nullptr) step.trace->alpha = selection.alpha;
}

Selection select_over_ranks(const Step& step, const SelectionPlan& plan, const RankedBy& by) {
  if (plan.k == 0 && !by.with_alpha) return {};
  return RankSearch(step, plan, by).select();
}

}  // namespace hayloft::runtime
