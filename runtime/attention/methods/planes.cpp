#include "runtime/attention/selection.h"

// SparQ's selection, masses and mean value (arXiv 2312.04985) with scores from bit planes: `bits` planes of K, spread
// over its components by what they are worth to the query (after Fathom, arXiv 2609.17652; index/scan/sparq_query.h).
namespace hayloft::runtime {
namespace {

class Planes : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  index::SelectPer selection_per() const override { return index::SelectPer::kv_head; }

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    gpu::SparqSelect select;
    select.bits = options_.bits;
    select.order = index::ComponentOrder::qk;
    select.rule = options_.rule;
    select.temperature = options_.temperature;
    attend_by_components(step, plan, q, select, options_.mean_value, out);
    return count_planned(step.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_planes(counters, cache, options_.bits, Place::link);
    const auto whole = static_cast<std::uint64_t>((options_.bits + offload::plane_count - 1) / offload::plane_count);
    counters.elements = n.heads * sparq_elements(n.S, whole, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_planes(const MethodOptions& options) {
  return std::make_unique<Planes>(options);
}

}  // namespace hayloft::runtime
