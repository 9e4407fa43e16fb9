#include "runtime/attention/selection_plan.h"

namespace hayloft::runtime {

StepTerms::StepTerms(const gpu::CacheView& cache, const SelectionPlan& plan)
    : heads(static_cast<std::uint64_t>(cache.kv_heads)),
      S(static_cast<std::uint64_t>(plan.tokens)),
      k(static_cast<std::uint64_t>((plan.positions() + std::int64_t{plan.lists} * plan.drawn / 2) / cache.kv_heads +
                                   plan.sinks + plan.tokens - plan.limit)),
      d(static_cast<std::uint64_t>(cache.head_dim)) {}

namespace {

std::uint64_t bytes_of_row(const gpu::CacheView& cache) {
  return cache.store.layout != nullptr ? cache.store.layout->row_bytes : 4 * static_cast<std::uint64_t>(cache.head_dim);
}

// V of a row: half of it in f16, and in integers all behind the levels of K, as the scales of both lie at the end.
std::uint64_t bytes_of_value(const gpu::CacheView& cache) {
  const offload::RowFormat format =
      cache.store.layout != nullptr ? cache.store.layout->row_format : offload::RowFormat::f16;
  return bytes_of_row(cache) -
         static_cast<std::uint64_t>(cache.head_dim) * static_cast<unsigned>(offload::bits_of(format)) / 8;
}

}  // namespace

std::int64_t values_for_rows(const gpu::CacheView& cache, int rows) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(rows) * bytes_of_row(cache) / bytes_of_value(cache));
}

Counters count_selection(const gpu::CacheView& cache, const SelectionPlan& plan, Kind kind) {
  Counters counters;
  count_rows(counters, cache, plan.attended(), kind);
  if (plan.drawn > 0) {
    counters.at(Place::link, kind) +=
        static_cast<std::uint64_t>(plan.lists) * static_cast<std::uint64_t>(plan.drawn) * bytes_of_value(cache);
  }
  counters.positions_scored = static_cast<std::uint64_t>(cache.kv_heads) * static_cast<std::uint64_t>(plan.tokens);
  return counters;
}

}  // namespace hayloft::runtime
