#include "runtime/attention/selection_plan.h"

namespace hayloft::runtime {

StepTerms::StepTerms(const gpu::CacheView& cache, const SelectionPlan& plan)
    : heads(static_cast<std::uint64_t>(cache.kv_heads)),
      S(static_cast<std::uint64_t>(plan.tokens)),
      k(static_cast<std::uint64_t>(plan.positions() / cache.kv_heads + plan.sinks + plan.tokens - plan.limit)),
      d(static_cast<std::uint64_t>(cache.head_dim)) {}

Counters count_selection(const gpu::CacheView& cache, const SelectionPlan& plan, Kind kind) {
  Counters counters;
  count_rows(counters, cache, plan.attended(), kind);
  counters.positions_scored = static_cast<std::uint64_t>(cache.kv_heads) * static_cast<std::uint64_t>(plan.tokens);
  return counters;
}

}  // namespace hayloft::runtime
