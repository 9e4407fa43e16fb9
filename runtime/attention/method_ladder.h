#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/attention/attention_rates.h"
#include "runtime/attention/method.h"

// Methods that catch more and more of the attention: what `auto` and --fidelity choose among.
namespace hayloft::runtime {

// Level 0 attends by the options as they are, each further one to twice as many positions, ranked by half as many
// components or planes more; the last level is exact. At `auto`'s levels there are several methods, of which none
// catches less than the first, but for its window; one that is blind in a layer, by MethodOptions::recall, stands aside
// there for its own first level that is not. Immutable and thread-safe.
class MethodLadder {
 public:
  // Throws Error on options out of range.
  MethodLadder(const MethodOptions& options, int head_dim);

  const MethodOptions& options() const { return options_; }
  int exact_level() const { return static_cast<int>(levels_.size()); }

  // The method of a level in a layer with that cache: at level 0 of a fixed method it; else that one of the level, or
  // dense attention, which is predicted to be fastest. As Method::chosen() asks.
  const Method& at(int level, const gpu::CacheView& cache, int query_heads) const;
  // The one that a level is judged by in a global layer: the first that reads such columns.
  const Method& judged_at(int level, offload::ColumnFormat columns, int layer) const;
  // The levels that are predicted to be faster than dense attention: those below this one. At least 1 for a fixed
  // method, whose level 0 was asked for.
  int worthwhile(const gpu::CacheView& cache, int query_heads) const;

  // Returns what the method keeps of a sequence, which all levels share; the first method says.
  const Method& first() const { return levels_.empty() ? *dense_ : *levels_.front().front(); }
  // Returns whether every level can go on from what the first one keeps.
  bool shares_state() const;

  // Milliseconds of a step in that layer, its tail taken to be in the middle of its tail_part().
  double predicted(const Method& method, const gpu::CacheView& cache, int query_heads) const;
  const Method& dense() const { return *dense_; }

 private:
  struct Prediction;
  bool fixed() const { return options_.name != "auto"; }
  bool fits(const Method& method, offload::ColumnFormat columns) const;
  bool blind(const Method& method, offload::ColumnFormat columns, int layer) const;
  const Method* seeing(int level, std::size_t which, offload::ColumnFormat columns, int layer) const;

  MethodOptions options_;
  std::shared_ptr<const MachineRates> rates_;
  std::vector<std::vector<std::shared_ptr<const Method>>> levels_;  // but for the exact one
  std::shared_ptr<const Method> dense_;
};

// The method that attends in global layer i by level levels[i] of the ladder, the last entry standing for all behind
// it. Its options are the ladder's.
SharedMethod make_leveled(std::shared_ptr<const MethodLadder> ladder, std::vector<int> levels);

}  // namespace hayloft::runtime
