#include "runtime/attention/methods/by_components.h"

// SparQ's selection, masses and mean value with scores from bit planes: `bits` planes of K, spread over its components
// by what they are worth to the query (after Fathom, arXiv 2609.17652; index/scan/sparq_query.h).
namespace hayloft::runtime {
namespace {

class Planes : public ByComponents {
 public:
  using ByComponents::ByComponents;

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_planes(counters, cache, options_.bits, Place::link);
    const auto whole = static_cast<std::uint64_t>((options_.bits + offload::plane_count - 1) / offload::plane_count);
    counters.elements = n.heads * sparq_elements(n.S, whole, n.k, n.d);
    return counters;
  }

 protected:
  gpu::SparqSelect scores() const override { return {.bits = options_.bits, .order = index::ComponentOrder::qk}; }
};

}  // namespace

std::unique_ptr<Method> make_planes(const MethodOptions& options) {
  return std::make_unique<Planes>(options);
}

}  // namespace hayloft::runtime
