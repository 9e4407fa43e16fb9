#include "runtime/attention/methods/by_components.h"

// SparQ Attention (arXiv 2312.04985): scores come from r columns of K.
namespace hayloft::runtime {
namespace {

class Sparq : public ByComponents {
 public:
  using ByComponents::ByComponents;

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_columns(counters, cache, options_.rank, Place::link);
    counters.elements = n.heads * sparq_elements(n.S, static_cast<std::uint64_t>(options_.rank), n.k, n.d);
    return counters;
  }

 protected:
  gpu::SparqSelect scores() const override { return {.rank = options_.rank, .order = options_.by}; }
};

}  // namespace

std::unique_ptr<Method> make_sparq(const MethodOptions& options) {
  return std::make_unique<Sparq>(options);
}

}  // namespace hayloft::runtime
