#include "runtime/attention/select_over_ranks.h"

#include <algorithm>
#include <limits>

#include "index/scan/exact_search.h"
#include "runtime/attention/over_ranks.h"
#include "runtime/cluster/joint_ranking.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime {
namespace {

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
        ranking_(*step.ranks, step.backend.threads(), plan.lists, heads_, plan.k,
                 by_softmax_ ? cluster::JointRanking::Rule::softmax : cluster::JointRanking::Rule::sum) {}

  Selection select() {
    const bool with_softmax = by_.with_alpha || by_softmax_;
    if (by_.on_device) {
      search_on_device(with_softmax);
    } else {
      if (with_softmax) see_tail();
      if (by_.with_alpha) see_late();
      for (std::size_t h = 0; h < ranking_.all.max.size(); ++h) {
        // The tail alone: the scan adds the store, what lies past the limit included.
        ranking_.all.max[h] = tail_max_.empty() ? -std::numeric_limits<float>::infinity() : tail_max_[h];
        ranking_.all.sum[h] = tail_sum_.empty() ? 0 : tail_sum_[h];
      }
      search(with_softmax);
    }
    Selection selection{ranking_.best().positions, {}};
    if (by_.with_alpha) selection.alpha = ranking_.alpha();
    return selection;
  }

 private:
  // What a rank's own search finds.
  struct Found {
    explicit Found(const RankSearch& of)
        : k(static_cast<int>(std::min<std::int64_t>(of.plan_.k, of.limit_))),
          positions(static_cast<std::size_t>(of.plan_.lists) * static_cast<std::size_t>(k)),
          logits(positions.size() * static_cast<std::size_t>(of.heads_)),
          given(of.plan_.lists, of.heads_, of.plan_.k) {}

    int k;                                // of a list
    std::vector<std::int32_t> positions;  // [lists][k]
    std::size_t logits;                   // how many those are, [Hq][k] or one for a position
    cluster::Candidates given;            // to the others, at first
  };

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
    for (std::size_t h = 0; h < tail_max_.size(); ++h) ranking_.attended.add(h, tail_max_[h], tail_sum_[h]);
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
          ranking_.attended.add(static_cast<std::size_t>(head * group + h),
                                scores[static_cast<std::size_t>(h * count + t)], 1);
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

  // Takes ranking_ to the best of all ranks and the softmaxes over all. Each rank finds the best of its positions and
  // gives them to all with its softmaxes, which with several query heads to a list are what it ranks by itself. So it
  // may leave out what the softmaxes over all ranks rank higher: where that cannot be excluded, each ranks again by
  // these, and gives what is missing.
  void search(bool with_softmax) {
    Found found(*this);
    std::vector<float> logits(found.logits);
    bool enough = true;
    const std::function<bool(float*, float*)> meet = [&](float*, float*) {
      found.given = candidates(found.positions, logits);
      enough = ranking_.give(found.given, with_softmax);
      return !enough;
    };
    index::SearchResult result;
    result.positions = found.positions.data();
    result.logits = logits.data();
    if (with_softmax) {
      result.max = ranking_.all.max.data();
      result.sum = ranking_.all.sum.data();
    }
    if (by_softmax_) result.again = &meet;
    const bool searches = view_.tokens > 0 && (found.k > 0 || with_softmax);
    if (searches) index::search_columns(view_, column_search(limit_, found.k), step_.backend.threads(), result);
    if (!searches || !by_softmax_) meet(nullptr, nullptr);
    if (!enough) ranking_.add_left_out(found.given, candidates(found.positions, logits));
  }

  // The same by the backend, which sees the tail and what lies past the limit as well.
  void search_on_device(bool with_softmax) {
    Found found(*this);
    const auto heads = static_cast<std::size_t>(step_.query_heads);
    std::vector<float> values(found.logits + 4 * heads);  // logits, then sums()
    const gpu::Buffer list = step_.backend.allocate(found.positions.size() * sizeof(std::int32_t), step_.stream);
    const gpu::Buffer numbers = step_.backend.allocate((values.size() + 2 * heads) * sizeof(float), step_.stream);
    const auto softmax = [&](std::size_t i) {
      float* const first = numbers.as<float>() + found.logits + 2 * i * heads;
      return gpu::SoftmaxPart{first, first + heads};
    };
    const auto fetch = [&] {
      step_.backend.to_host(values.data(), numbers.as<void>(), values.size() * sizeof(float), step_.stream);
      step_.backend.to_host(found.positions.data(), list.as<void>(), found.positions.size() * sizeof(std::int32_t),
                            step_.stream);
    };
    bool enough = true;
    const std::function<bool()> meet = [&] {
      fetch();
      auto from = values.begin() + static_cast<std::ptrdiff_t>(found.logits);
      for (std::vector<float>* part :
           {&ranking_.all.max, &ranking_.all.sum, &ranking_.attended.max, &ranking_.attended.sum}) {
        std::copy_n(from, heads, part->begin());
        from += static_cast<std::ptrdiff_t>(heads);
      }
      found.given = candidates(found.positions, values);
      enough = ranking_.give(found.given, with_softmax);
      if (!enough) {
        step_.backend.to_device(softmax(2).max, ranking_.all.max.data(), heads * sizeof(float), step_.stream);
        step_.backend.to_device(softmax(2).sum, ranking_.all.sum.data(), heads * sizeof(float), step_.stream);
      }
      return !enough;
    };
    gpu::SparqSelect select = by_.on_device->select;
    select.k = found.k;
    select.limit = limit_;
    select.held_bytes = step_.held_bytes;
    select.part = {numbers.as<float>(), softmax(0), softmax(1), softmax(2), &meet};
    step_.backend.select_sparq(part_.cache(), by_.on_device->q, step_.query_heads, select, list.as<std::int32_t>(),
                               nullptr, step_.stream);
    if (enough) return;
    fetch();
    ranking_.add_left_out(found.given, candidates(found.positions, values));
  }

  // The best own positions, as whole ones.
  cluster::Candidates candidates(const std::vector<std::int32_t>& positions, const std::vector<float>& logits) const {
    cluster::Candidates own(plan_.lists, heads_, plan_.k);
    const auto row = positions.size() / static_cast<std::size_t>(plan_.lists), wide = static_cast<std::size_t>(plan_.k);
    for (std::size_t i = 0; i < positions.size(); ++i) own.positions[i / row * wide + i % row] = whole(positions[i]);
    const std::size_t count = positions.size() * static_cast<std::size_t>(heads_);
    for (std::size_t i = 0; i < count; ++i) own.logits[i / row * wide + i % row] = logits[i];
    return own;
  }

  std::int32_t whole(std::int32_t own) const {
    return static_cast<std::int32_t>(part_.whole(std::int64_t{own} * by_.entry_tokens) / by_.entry_tokens);
  }

  const Step& step_;
  const SelectionPlan& plan_;
  const RankedBy& by_;
  cluster::Part part_;
  offload::LayerView view_;  // what is searched, of own positions
  std::int64_t limit_;       // own entries from here on are attended anyway
  int heads_;                // that share a list
  bool by_softmax_;          // whether they rank by softmaxes, which need the sums of all ranks
  cluster::JointRanking ranking_;
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
