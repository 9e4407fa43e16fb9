#include "runtime/attention/method.h"

// Does what SparQ (arXiv 2312.04985) would do if its step 1 were perfect: steps 2 and 3 on the exact scores of every
// position. The search runs near the memory; the softmax, alpha and the group's sums are exact.
namespace hayloft::runtime {
namespace {

class Oracle : public Method {
 public:
  explicit Oracle(const MethodOptions& options) : Method(options, {.rest = rest_of(options)}) {}

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  Ranking ranking(const Step&, const SelectionPlan&) const override { return by_keys(by_, true); }

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
