#include "runtime/attention/selection_plan.h"

namespace hayloft::runtime {

StepTerms::StepTerms(const gpu::CacheView& cache, const SelectionPlan& plan)
    : heads(static_cast<std::uint64_t>(cache.kv_heads)),
      S(static_cast<std::uint64_t>(plan.tokens)),
      k(static_cast<std::uint64_t>((plan.positions() + std::int64_t{plan.lists} * plan.drawn / 2) / cache.kv_heads +
                                   plan.sinks + plan.tokens - plan.limit)),
      d(static_cast<std::uint64_t>(cache.head_dim)) {}

int values_per_row(const gpu::CacheView& cache) {
  return cache.store.layout != nullptr && cache.store.layout->row_format == offload::RowFormat::f16 ? 2 : 1;
}

Counters count_selection(const gpu::CacheView& cache, const SelectionPlan& plan, Kind kind) {
  Counters counters;
  count_rows(counters, cache, plan.attended(), kind);
  if (plan.drawn > 0) {
    const std::uint64_t bytes = cache.store.layout->row_bytes / static_cast<std::uint64_t>(values_per_row(cache));
    counters.at(Place::link, kind) +=
        static_cast<std::uint64_t>(plan.lists) * static_cast<std::uint64_t>(plan.drawn) * bytes;
  }
  counters.positions_scored = static_cast<std::uint64_t>(cache.kv_heads) * static_cast<std::uint64_t>(plan.tokens);
  return counters;
}

}  // namespace hayloft::runtime
