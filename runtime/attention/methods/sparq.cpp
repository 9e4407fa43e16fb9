#include "runtime/attention/method.h"

// SparQ Attention (arXiv 2312.04985, section 4 and appendix B): approximate scores from r columns of K choose k
// positions on the device, whose rows are fetched; the mean value stands in for the rest.
namespace hayloft::runtime {
namespace {

class Sparq : public Method {
 public:
  explicit Sparq(const MethodOptions& options) : Method(options, {.rest = rest_of(options)}) {}

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  Ranking ranking(const Step&, const SelectionPlan&) const override { return by_components(by_, true); }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_columns(counters, cache, by_.rank, Place::link);
    counters.elements = n.heads * sparq_elements(n.S, static_cast<std::uint64_t>(by_.rank), n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_sparq(const MethodOptions& options) {
  return std::make_unique<Sparq>(options);
}

}  // namespace hayloft::runtime
