#include "runtime/attention/select_over_ranks.h"

// What SparQ (arXiv 2312.04985) would do if its step 1 were perfect: steps 2 and 3 on the exact scores of every
// position. The search runs near the memory; the softmax, alpha and the group's sums are exact.
namespace hayloft::runtime {
namespace {

class Oracle : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    if (step.ranks != nullptr) {
      RankedBy by = exact_logits(step, q, options_);
      by.with_alpha = true;
      attend_selection_over_ranks(step, plan, q, select_over_ranks(step, plan, by), options_.mean_value, out);
      return count_planned(step.cache, plan);
    }
    const std::vector<float> query = query_on_host(step, q, index::exact_scale(step.head_dim()));
    const TailScores tail = score_tail(step, query);
    const HostSearch search{step.cache.store, step.head_dim(),       query,
                            options_.rule,    selects_per(options_), index::exact_keys(step.cache.store)};
    attend_selection(step, plan, q, select_on_host(step, plan, search, &tail), options_.mean_value, out);
    return count_planned(step.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_exact_keys(counters, cache);
    counters.elements = n.heads * sparq_elements(n.S, n.d, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_oracle(const MethodOptions& options) {
  return std::make_unique<Oracle>(options);
}

}  // namespace hayloft::runtime
