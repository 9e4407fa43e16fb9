#include "runtime/attention/selection.h"

// SparQ Attention (arXiv 2312.04985, section 4 and appendix B): r columns of K choose k positions, whose rows are
// fetched; the mean value stands in for the rest.
namespace hayloft::runtime {
namespace {

class Sparq : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  index::SelectPer selection_per() const override { return index::SelectPer::kv_head; }

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    gpu::SparqSelect select;
    select.rank = options_.rank;
    select.order = options_.by;
    select.rule = options_.rule;
    select.temperature = options_.temperature;
    attend_by_components(step, plan, q, select, options_.mean_value, out);
    return count_planned(step.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_columns(counters, cache, options_.rank, Place::link);
    counters.elements = n.heads * sparq_elements(n.S, static_cast<std::uint64_t>(options_.rank), n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_sparq(const MethodOptions& options) {
  return std::make_unique<Sparq>(options);
}

}  // namespace hayloft::runtime
