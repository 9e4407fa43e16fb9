#include <algorithm>

#include "runtime/attention/selection.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    gpu::ExactSelect select;
    select.rule = options_.rule;
    select.per = selects_per(options_);
    select.faiss = options_.faiss;
    select.limit = plan.limit;
    select.k = plan.k;
    std::int32_t* const positions = positions_on_device(step, plan);
    step.backend.select_exact(step.cache, q, step.query_heads, select, positions, step.stream);
    attend_positions(step, plan, q, positions, nullptr, out);
    return count_planned(step.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_exact_keys(counters, cache);
    counters.elements = n.heads * topk_elements(n.S, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
