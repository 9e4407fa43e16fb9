#include <algorithm>

#include "runtime/attention/method.h"

// The first s tokens (sinks) and the last w: LM-Infinite (arXiv 2308.16137) and StreamingLLM (arXiv 2309.17453).
namespace hayloft::runtime {
namespace {

class Window : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override {
    if (options_.window) return std::min(*options_.window, tokens);
    return std::min(tokens, std::max<std::int64_t>(1, options_.k.at(layer).of(tokens) - options_.sinks));
  }

  SelectionPlan plan_selection(const gpu::CacheView& cache, int) const override {
    SelectionPlan plan;
    plan.tokens = cache.tokens();
    plan.limit = plan.tokens - window(plan.tokens, cache.layer);
    plan.sinks = std::min(options_.sinks, plan.limit);
    return plan;
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    counters.positions_scored = n.heads * n.k;
    counters.elements = n.heads * window_elements(n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_window(const MethodOptions& options) {
  return std::make_unique<Window>(options);
}

}  // namespace hayloft::runtime
