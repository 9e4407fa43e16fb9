#include "runtime/attention/select_over_ranks.h"

#include <algorithm>
#include <cmath>

#include "index/scan/exact_search.h"
#include "index/scan/softmax.h"
#include "runtime/attention/over_ranks.h"
#include "runtime/cluster/candidates.h"
#include "runtime/cluster/part.h"
#include "runtime/cluster/same_exp.h"

namespace hayloft::runtime {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// (max, sum) of each query head.
struct Softmax {
  explicit Softmax(int query_heads)
      : max(static_cast<std::size_t>(query_heads), -infinity), sum(static_cast<std::size_t>(query_heads)) {}

  // Log-sum-exp, the same to the bit on every rank.
  void add(std::size_t head, float other_max, float other_sum) {
    const auto rescale = [](float from, float to) { return from == to ? 1.0f : cluster::same_exp(from - to); };
    const float merged = other_max > max[head] || std::isnan(other_max) ? other_max : max[head];
    sum[head] = sum[head] * rescale(max[head], merged) + other_sum * rescale(other_max, merged);
    max[head] = merged;
  }

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
        best_(plan.lists, heads_, plan.k),
        all_(step.query_heads),
        attended_(step.query_heads) {}

  Selection select() {
    const bool with_softmax = by_.with_alpha || by_softmax_;
    if (by_.on_device) {
      search_on_device(with_softmax);
    } else {
      if (with_softmax) see_tail();
      if (by_.with_alpha) see_late();
      for (std::size_t h = 0; h < all_.max.size(); ++h) {
        // The tail alone: the scan adds the store, what lies past the limit included.
        all_.max[h] = tail_max_.empty() ? -infinity : tail_max_[h];
        all_.sum[h] = tail_sum_.empty() ? 0 : tail_sum_[h];
      }
      search(with_softmax);
    }
    Selection selection{best_.positions, {}};
    if (by_.with_alpha) selection.alpha = alpha();
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

  // Finds best_ and takes all_ to the softmaxes over all ranks. Each rank finds the best of its positions and gives
  // them to all with its softmaxes, which with several query heads to a list are what it ranks by itself. So it may
  // leave out what the softmaxes over all ranks rank higher: where that cannot be excluded, each ranks again by these,
  // and gives what is missing.
  void search(bool with_softmax) {
    Found found(*this);
    std::vector<float> logits(found.logits);
    bool enough = true;
    const std::function<bool(float*, float*)> meet = [&](float*, float*) {
      found.given = candidates(found.positions, logits);
      enough = give(found.given, with_softmax);
      return !enough;
    };
    index::SearchResult result;
    result.positions = found.positions.data();
    result.logits = logits.data();
    if (with_softmax) {
      result.max = all_.max.data();
      result.sum = all_.sum.data();
    }
    if (by_softmax_) result.again = &meet;
    const bool searches = view_.tokens > 0 && (found.k > 0 || with_softmax);
    if (searches) index::search_columns(view_, column_search(limit_, found.k), step_.backend.threads(), result);
    if (!searches || !by_softmax_) meet(nullptr, nullptr);
    if (!enough) add_left_out(found.given, candidates(found.positions, logits));
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
      for (std::vector<float>* part : {&all_.max, &all_.sum, &attended_.max, &attended_.sum}) {
        std::copy_n(from, heads, part->begin());
        from += static_cast<std::ptrdiff_t>(heads);
      }
      found.given = candidates(found.positions, values);
      enough = give(found.given, with_softmax);
      if (!enough) {
        step_.backend.to_device(softmax(2).max, all_.max.data(), heads * sizeof(float), step_.stream);
        step_.backend.to_device(softmax(2).sum, all_.sum.data(), heads * sizeof(float), step_.stream);
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
    add_left_out(found.given, candidates(found.positions, values));
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

  // Gives them to all and takes the best of what all give; whether nothing that counts was left out.
  bool give(const cluster::Candidates& own, bool with_softmax) {
    const cluster::GatheredCandidates all(*step_.ranks, own, with_softmax ? sums() : std::vector<float>());
    if (with_softmax) take_sums(all);
    best_ = all.best(plan_.k, by_all(), step_.backend.threads());
    return !by_softmax_ || plan_.k == 0 || none_left_out(all);
  }

  std::int32_t whole(std::int32_t own) const {
    return static_cast<std::int32_t>(part_.whole(std::int64_t{own} * by_.entry_tokens) / by_.entry_tokens);
  }

  // Whether nothing that ranks left out can be among the best. To what a rank left out its own softmaxes, summed over
  // the heads, give no more than to the least of what it gave; the softmaxes over all ranks give that times the share
  // of a head's softmax that lies with the rank, and hence no more than times the largest share of a head.
  bool none_left_out(const cluster::GatheredCandidates& all) const {
    const auto group = static_cast<std::size_t>(heads_), heads = all_.max.size();
    for (int list = 0; list < plan_.lists; ++list) {
      if (best_.position(list, best_.k - 1) < 0) continue;  // all gave what they have
      const float enough = least_that_counts(list);
      const std::size_t first = static_cast<std::size_t>(list) * group;
      for (int rank = 0; rank < step_.ranks->ranks(); ++rank) {
        if (!all.full(rank, list)) continue;
        const std::span<const float> max = all.note(rank).first(heads), sum = all.note(rank).subspan(heads, heads);
        float share = 0;
        for (std::size_t h = first; h < first + group; ++h) {
          share = std::max(share, sum[h] * cluster::same_exp(max[h] - all_.max[h]) / all_.sum[h]);
        }
        const float least =
            all.least(rank, list, [&](int of, std::span<const float> its) { return score(of, its, max, sum); });
        if (!(least * share < enough)) return false;
      }
    }
    return true;
  }

  // What scores less is not among the best, whatever rounding does to sums, exponentials and the searches' own.
  float least_that_counts(int list) const {
    constexpr float rounding = 1e-4f;
    std::vector<float> logits(static_cast<std::size_t>(heads_));
    float least = infinity;
    for (int at = 0; at < best_.k; ++at) {
      for (int h = 0; h < heads_; ++h) logits[static_cast<std::size_t>(h)] = best_.logit(list, h, at);
      const float one = score(list, logits, all_.max, all_.sum);
      if (!(one >= least)) least = one;
    }
    return least * (1 - rounding);
  }

  // What this rank ranks among its best only by the softmaxes over all ranks, as far as it counts: few positions, which
  // all ranks give to all, so many at a time until nobody has more.
  void add_left_out(const cluster::Candidates& given, const cluster::Candidates& now) {
    const int at_a_time = cluster::left_out_at_a_time(plan_.k, step_.ranks->ranks());
    std::vector<std::vector<int>> missing(static_cast<std::size_t>(plan_.lists));  // places in `now`
    std::vector<float> logits(static_cast<std::size_t>(heads_));
    for (int list = 0; list < plan_.lists; ++list) {
      const float enough = least_that_counts(list);
      const auto first = given.positions.begin() + static_cast<std::ptrdiff_t>(given.index(list, 0));
      const auto end = std::find(first, first + given.k, -1);
      for (int at = 0; at < now.k && now.position(list, at) >= 0; ++at) {
        for (int h = 0; h < heads_; ++h) logits[static_cast<std::size_t>(h)] = now.logit(list, h, at);
        if (score(list, logits, all_.max, all_.sum) < enough ||
            std::binary_search(first, end, now.position(list, at))) {
          continue;
        }
        missing[static_cast<std::size_t>(list)].push_back(at);
      }
    }
    for (bool more = true; more;) {
      cluster::Candidates some(plan_.lists, heads_, at_a_time);
      float left = 0;  // whether there are more
      for (int list = 0; list < plan_.lists; ++list) {
        std::vector<int>& places = missing[static_cast<std::size_t>(list)];
        const auto count = static_cast<int>(std::min<std::size_t>(places.size(), at_a_time));
        for (int i = 0; i < count; ++i) {
          const int at = places[static_cast<std::size_t>(i)];
          some.positions[some.index(list, i)] = now.position(list, at);
          for (int h = 0; h < heads_; ++h) {
            some.logits[some.index(list * heads_ + h, i)] = now.logit(list, h, at);
          }
        }
        places.erase(places.begin(), places.begin() + count);
        if (!places.empty()) left = 1;
      }
      const cluster::GatheredCandidates all(*step_.ranks, some, std::span(&left, 1));
      best_ = all.best(plan_.k, by_all(), step_.backend.threads(), &best_);
      more = false;
      for (int rank = 0; rank < step_.ranks->ranks(); ++rank) more = more || all.note(rank)[0] > 0;
    }
  }

  // What this rank tells of the softmaxes: [Hq] of max and sum over its own positions, then of those attended anyway.
  std::vector<float> sums() const {
    std::vector<float> values;
    for (const std::vector<float>* part : {&all_.max, &all_.sum, &attended_.max, &attended_.sum}) {
      values.insert(values.end(), part->begin(), part->end());
    }
    return values;
  }

  void take_sums(const cluster::GatheredCandidates& all) {
    const std::size_t n = all_.max.size();
    for (Softmax* softmax : {&all_, &attended_}) {  // in place: the search goes on from there
      std::ranges::fill(softmax->max, -infinity);
      std::ranges::fill(softmax->sum, 0.0f);
    }
    for (int rank = 0; rank < step_.ranks->ranks(); ++rank) {
      for (std::size_t h = 0; h < n; ++h) {
        const float* const own = all.note(rank).data() + h;
        all_.add(h, own[0], own[n]);
        attended_.add(h, own[2 * n], own[3 * n]);
      }
    }
  }

  cluster::Score by_all() const {
    return [this](int list, std::span<const float> logits) { return score(list, logits, all_.max, all_.sum); };
  }

  // By softmaxes (max, sum) [Hq] where they are what is ranked by.
  float score(int list, std::span<const float> logits, std::span<const float> max, std::span<const float> sum) const {
    if (heads_ == 1) return logits.front();
    float total = 0;
    for (std::size_t h = 0; h < logits.size(); ++h) {
      const std::size_t head = static_cast<std::size_t>(list) * logits.size() + h;
      total += by_softmax_ ? cluster::same_exp(logits[h] - max[head]) / sum[head] : logits[h];
    }
    return total;
  }

  // The share of the softmax that lies on what is attended, [Hq].
  std::vector<float> alpha() const {
    std::vector<float> share(all_.max.size());
    for (std::size_t h = 0; h < share.size(); ++h) {
      double mass = attended_.sum[h] * index::rescale(attended_.max[h], all_.max[h]);
      const std::size_t list = h / static_cast<std::size_t>(heads_);
      for (std::size_t i = 0; i < static_cast<std::size_t>(best_.k); ++i) {
        if (best_.positions[list * static_cast<std::size_t>(best_.k) + i] < 0) continue;
        mass += std::exp(best_.logits[h * static_cast<std::size_t>(best_.k) + i] - all_.max[h]);
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
  cluster::Candidates best_;
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
