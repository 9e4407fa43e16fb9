#include "runtime/attention/method.h"

// Exact attention to everything: all of K and V, streamed over the link.
namespace hayloft::runtime {
namespace {

class Dense : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t, int) const override { return 0; }
  std::int64_t recall_k(std::int64_t, int) const override { return 0; }

  SelectionPlan plan_selection(const gpu::CacheView& cache, int) const override {
    SelectionPlan plan;
    plan.tokens = cache.tokens();
    return plan;
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan, Kind::dense);
    counters.elements = n.heads * dense_elements(n.S, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_dense(const MethodOptions& options) {
  return std::make_unique<Dense>(options);
}

}  // namespace hayloft::runtime
