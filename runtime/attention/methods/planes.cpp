#include "runtime/attention/method.h"

// SparQ's selection, masses and mean value with scores from bit planes: `bits` planes of K, spread over its components
// by what they are worth to the query (after Fathom, arXiv 2609.17652; index/scan/sparq_query.h).
namespace hayloft::runtime {
namespace {

class Planes : public Method {
 public:
  explicit Planes(const MethodOptions& options) : Method(options, {.rest = rest_of(options)}) {}

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  Ranking ranking(const Step&, const SelectionPlan&) const override { return by_components(by_, true); }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_planes(counters, cache, by_.bits, Place::link);
    const auto whole = static_cast<std::uint64_t>((by_.bits + offload::plane_count - 1) / offload::plane_count);
    counters.elements = n.heads * sparq_elements(n.S, whole, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_planes(const MethodOptions& options) {
  return std::make_unique<Planes>(options);
}

}  // namespace hayloft::runtime
