#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "runtime/attention/counters.h"

namespace hayloft::runtime {

// The positions that one decode step attends to in one layer, but for the positions that its query selects: [0, sinks)
// and [limit, tokens), and in each list k positions of the store's [0, limit). It depends on the shape of the cache
// alone, so the planner makes the plan of a step as the step itself does.
struct SelectionPlan {
  std::int64_t tokens = 0;  // S
  std::int64_t limit = 0;   // at most the tokens in the store where k > 0
  std::int64_t sinks = 0;
  int lists = 0;  // Hkv or Hq; 0 where nothing is selected
  int k = 0;      // per list
  int drawn = 0;  // positions per list whose values are drawn: Rest::Kind::draw

  bool selects() const { return lists > 0; }
  std::int64_t positions() const { return std::int64_t{lists} * k; }  // of all lists
  // But for the positions.
  gpu::Attended attended() const {
    gpu::Attended what;
    what.lists = lists;
    what.k = k;
    what.ranges[0] = {0, sinks};
    what.ranges[sinks > 0 ? 1 : 0] = {limit, tokens};
    return what;
  }
};

// The terms of the papers' formulas, of one step in one layer.
struct StepTerms {
  StepTerms(const gpu::CacheView& cache, const SelectionPlan& plan);

  std::uint64_t heads;  // Hkv
  std::uint64_t S;
  std::uint64_t k;  // positions attended, per KV head: those of all its lists, and the ranges
  std::uint64_t d;
};

// Values in the store's rows that are read for the bytes of so many rows: two for each row of f16, a few less of
// integers, where the scales of K come with them.
std::int64_t values_for_rows(const gpu::CacheView& cache, int rows);

// Returns what every step that scores all positions and then reads those of the plan adds to the counters: the bytes of
// the rows and of the values drawn, those in the store as `kind`, and heads * S positions scored.
Counters count_selection(const gpu::CacheView& cache, const SelectionPlan& plan, Kind kind = Kind::rows);

}  // namespace hayloft::runtime
