#include "runtime/cluster/rank_selection.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "index/scan/exact_search.h"
#include "runtime/cluster/attend_part.h"
#include "runtime/cluster/joint_ranking.h"

namespace hayloft::runtime::cluster {
namespace {

// One step's search, on one rank.
class RankSearch {
 public:
  RankSearch(Communicator& ranks, const Step& step, const SelectionPlan& plan, const Ranking& ranking)
      : step_(step),
        at_(step.at),
        plan_(plan),
        by_(ranking),
        part_(at_.cache),
        view_(ranking.source == Ranking::Source::derived ? ranking.columns : part_.cache().store),
        limit_(part_.own(plan.limit * ranking.entry_tokens) / ranking.entry_tokens),
        heads_(plan.lists == at_.query_heads ? 1 : at_.group()),
        by_softmax_(heads_ > 1 && ranking.by.rule == index::GroupRule::softmax),
        ranking_(ranks, at_.backend.threads(), plan.lists, heads_, plan.k,
                 by_softmax_ ? JointRanking::Rule::softmax : JointRanking::Rule::sum) {}

  // On the device where that searches in parts and the rank has blocks.
  Selection select() {
    const bool with_softmax = by_.with_alpha || by_softmax_;
    if (by_.source == Ranking::Source::components && at_.backend.searches_in_parts() && at_.cache.store.tokens > 0) {
      search_on_device(with_softmax);
    } else {
      host_.emplace(step_, by_);
      if (with_softmax) see_tail();
      if (by_.with_alpha) see_late();
      for (std::size_t h = 0; h < ranking_.all.max.size(); ++h) {
        // The tail alone: the scan adds the store, what lies past the limit included.
        ranking_.all.max[h] = tail_max_.empty() ? -std::numeric_limits<float>::infinity() : tail_max_[h];
        ranking_.all.sum[h] = tail_sum_.empty() ? 0 : tail_sum_[h];
      }
      search(with_softmax);
    }
    Selection selection{ranking_.best().positions};
    if (by_.with_alpha) selection.alpha = ranking_.alpha();
    return selection;
  }

 private:
  // The findings of a rank's own search.
  struct Found {
    explicit Found(const RankSearch& of)
        : k(static_cast<int>(std::min<std::int64_t>(of.plan_.k, of.limit_))),
          positions(static_cast<std::size_t>(of.plan_.lists) * static_cast<std::size_t>(k)),
          logits(positions.size() * static_cast<std::size_t>(of.heads_)),
          given(of.plan_.lists, of.heads_, of.plan_.k) {}

    int k;                                // of a list
    std::vector<std::int32_t> positions;  // [lists][k]
    std::size_t logits;                   // how many those are, [Hq][k] or one for a position
    Candidates given;                     // to the others, at first
  };

  // (max, sum) over the tail, by the rank that attends to it. Attention with queries that are zero outside the chosen
  // components has the approximate logits for its own, but for the scale.
  void see_tail() {
    const bool of_entries = by_.source == Ranking::Source::derived && by_.tail_weights.empty();
    if (of_entries || !part_.has_tail() || at_.cache.tail.tokens == 0) return;
    std::vector<float> q = host_->key_weights();
    for (float& x : q) x /= index::exact_scale(at_.head_dim());
    const gpu::Buffer on_device = at_.backend.allocate(q.size() * sizeof(float), at_.stream);
    at_.backend.to_device(on_device.as<void>(), q.data(), on_device.bytes(), at_.stream);
    gpu::Attended tail;
    tail.ranges[0] = {part_.cache().store.tokens, part_.cache().tokens()};
    AttentionParts seen = attend_part(at_, part_, on_device.as<float>(), tail);
    tail_max_.assign(seen.max(), seen.max() + at_.query_heads);
    tail_sum_.assign(seen.sum(), seen.sum() + at_.query_heads);
    for (std::size_t h = 0; h < tail_max_.size(); ++h) ranking_.attended.add(h, tail_max_[h], tail_sum_[h]);
  }

  // (max, sum) over own positions from the limit on, which are attended to whatever they score.
  void see_late() {
    if (limit_ == view_.tokens) return;
    const std::int64_t begin = limit_ / 64 * 64;
    const std::int64_t count = view_.tokens - begin;
    const int group = at_.group();
    std::vector<float> scores(static_cast<std::size_t>(group * count));
    const index::ColumnSearch search = host_->search(view_.tokens, 0);
    for (int head = 0; head < at_.kv_heads(); ++head) {
      index::score_columns(view_, search, head, begin, view_.tokens, scores.data());
      for (int h = 0; h < group; ++h) {
        for (std::int64_t t = limit_ - begin; t < count; ++t) {
          ranking_.attended.add(static_cast<std::size_t>(head * group + h),
                                scores[static_cast<std::size_t>(h * count + t)], 1);
        }
      }
    }
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
    if (searches) index::search_columns(view_, host_->search(limit_, found.k), at_.backend.threads(), result);
    if (!searches || !by_softmax_) meet(nullptr, nullptr);
    if (!enough) ranking_.add_left_out(found.given, candidates(found.positions, logits));
  }

  // The same by the backend, which sees the tail and what lies past the limit as well.
  void search_on_device(bool with_softmax) {
    Found found(*this);
    const auto heads = static_cast<std::size_t>(at_.query_heads);
    std::vector<float> values(found.logits + 4 * heads);  // logits, then sums()
    const gpu::Buffer list = at_.backend.allocate(found.positions.size() * sizeof(std::int32_t), at_.stream);
    const gpu::Buffer numbers = at_.backend.allocate((values.size() + 2 * heads) * sizeof(float), at_.stream);
    const auto softmax = [&](std::size_t i) {
      float* const first = numbers.as<float>() + found.logits + 2 * i * heads;
      return gpu::SoftmaxPart{first, first + heads};
    };
    const auto fetch = [&] {
      at_.backend.to_host(values.data(), numbers.as<void>(), values.size() * sizeof(float), at_.stream);
      at_.backend.to_host(found.positions.data(), list.as<void>(), found.positions.size() * sizeof(std::int32_t),
                          at_.stream);
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
        at_.backend.to_device(softmax(2).max, ranking_.all.max.data(), heads * sizeof(float), at_.stream);
        at_.backend.to_device(softmax(2).sum, ranking_.all.sum.data(), heads * sizeof(float), at_.stream);
      }
      return !enough;
    };
    gpu::SparqSelect select{
        by_.by, found.k, limit_, step_.held_bytes, {numbers.as<float>(), softmax(0), softmax(1), softmax(2), &meet}};
    if (step_.held_bytes != nullptr) select.ahead_bytes = step_.held_bytes + 3;
    at_.backend.select_sparq(part_.cache(), step_.q, at_.query_heads, select, list.as<std::int32_t>(), nullptr,
                             at_.stream);
    if (enough) return;
    fetch();
    ranking_.add_left_out(found.given, candidates(found.positions, values));
  }

  // The best own positions, as whole ones.
  Candidates candidates(const std::vector<std::int32_t>& positions, const std::vector<float>& logits) const {
    Candidates own(plan_.lists, heads_, plan_.k);
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
  const LayerStep& at_;
  const SelectionPlan& plan_;
  const Ranking& by_;
  std::optional<HostRanking> host_;  // by_, where the host searches
  Part part_;
  offload::LayerView view_;  // what is searched, of own positions
  std::int64_t limit_;       // own entries from here on are attended anyway
  int heads_;                // that share a list
  bool by_softmax_;          // whether they rank by softmaxes, which need the sums of all ranks
  JointRanking ranking_;
  std::vector<float> tail_max_;  // [Hq], empty without a tail
  std::vector<float> tail_sum_;
};

}  // namespace

Selection select_over_ranks(Communicator& ranks, const Step& step, const SelectionPlan& plan, const Ranking& ranking) {
  if (plan.k == 0 && !ranking.with_alpha) return {};
  return RankSearch(ranks, step, plan, ranking).select();
}

}  // namespace hayloft::runtime::cluster
