#include "runtime/attention/over_ranks.h"
#include "runtime/attention/search_over_ranks.h"
#include "runtime/attention/select_over_ranks.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    if (step.ranks != nullptr && options_.faiss) return attend_by_faiss_over_ranks(step, plan, q, out);
    if (step.ranks != nullptr) {
      const Selection found = select_over_ranks(step, plan, exact_logits(step, q, options_));
      attend_over_ranks(step, plan, q, found.positions, nullptr, out);
      return count_planned(step.cache, plan);
    }
    Selection selection;
    if (plan.k > 0) {
      const index::ExactSearch search{step.query_heads,      plan.limit,    plan.k, options_.rule,
                                      selects_per(options_), options_.faiss};
      selection.positions.resize(static_cast<std::size_t>(plan.positions()));
      index::SearchResult result;
      result.positions = selection.positions.data();
      const std::vector<float> query = query_on_host(step, q, 1);
      TailScores tail;
      if (index::needs_tail_softmax(search)) {
        std::vector<float> weights = query;
        for (float& x : weights) x *= index::exact_scale(step.head_dim());
        tail = score_tail(step, weights);
        result.max = tail.max.data();
        result.sum = tail.sum.data();
      }
      index::search_exact(step.cache.store, query.data(), search, step.backend.threads(), result);
    }
    attend_selection(step, plan, q, selection, false, out);
    return count_planned(step.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_exact_keys(counters, cache);
    counters.elements = n.heads * topk_elements(n.S, n.k, n.d);
    return counters;
  }

 private:
  // Faiss gives positions alone, so what the ranks have found is scored by its rows.
  Counters attend_by_faiss_over_ranks(const Step& step, const SelectionPlan& plan, const float* q, float* out) const {
    const std::vector<float> query = query_on_host(step, q, 1);
    const RankFinds found = search_over_ranks(
        step, plan, query.data(),
        [&](const offload::LayerView& view, std::int64_t limit, int k, std::int32_t* positions) {
          const index::ExactSearch search{step.query_heads, limit, k, options_.rule, selects_per(options_), true};
          index::SearchResult result;
          result.positions = positions;
          index::search_exact(view, query.data(), search, step.backend.threads(), result);
          return std::vector<std::uint64_t>();
        });
    attend_over_ranks(step, plan, q, found.positions, nullptr, out);
    Counters counters = count_planned(step.cache, plan);
    counters.at(Place::near, Kind::rows) += found.scored * step.cache.store.layout->row_bytes / 2;
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
