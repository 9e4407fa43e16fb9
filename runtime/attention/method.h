#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/backend.h"
#include "runtime/attention/attender.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method_options.h"
#include "runtime/attention/method_state.h"
#include "runtime/attention/ranking.h"
#include "runtime/attention/rest.h"
#include "runtime/attention/selection_plan.h"
#include "runtime/attention/step.h"

namespace hayloft::runtime {

class Method;

// One step in one layer before its query is known: who attends, and to what but for the positions that it selects.
struct StepPlan {
  const Method* by;  // `auto` has chosen
  SelectionPlan selection;
};

// A method besides its options.
struct MethodTraits {
  Rest rest = {};           // stands in for what it does not read
  bool own_search = false;  // it attends itself, in place of ranking()
};

// A way of attending: immutable, thread-safe, shared by sessions. A method that selects positions says how they are
// ranked and what that costs; the rest of a step is that of all (attend()). One with a search of its own attends
// itself.
class Method {
 public:
  explicit Method(MethodOptions options, MethodTraits traits = {});
  virtual ~Method() = default;

  const MethodOptions& options() const { return options_; }
  // By which it ranks positions: its options, and its own nature.
  const index::RankingOptions& ranking_options() const { return by_; }
  // Throws Error, and says what to use, unless a step can read key columns of this format.
  void require_columns(offload::ColumnFormat columns) const;
  // Throws Error where its k has a value for a layer behind the last of so many.
  void require_layers(int global_layers) const;
  virtual std::int64_t window(std::int64_t tokens,
                              int layer = 0) const;  // w at this length; 0 unless an option says so

  // Says who attends to such a cache, and to what. It looks at the cache's shape and its numbers of tokens only, so
  // that steps of caches that do not exist can be planned and counted. The method is this one, but by `auto`, which
  // leaves that to others: it depends on the shape of the cache, the tokens in its store and tail_part() of it, on
  // nothing else, and lives as long as this one. So it can be kept, and given as `kept`, while these stay.
  StepPlan plan(const gpu::CacheView& cache, int query_heads, const Method* kept = nullptr) const;

  // Attends as planned by this method, fills the step's trace, where it has one, and returns what that costs.
  Counters attend(const Step& step, const SelectionPlan& plan) const;
  // Counts as attend() does; where a search visits as many keys as it happens to, an estimate.
  Counters count(const gpu::CacheView& cache, const SelectionPlan& plan) const { return count_planned(cache, plan); }
  // The same by plan().
  Counters attend(const Step& step) const;
  Counters count(const gpu::CacheView& cache, int query_heads) const;

  // Counts how many of the true top-k a perfect method of this kind would fetch, for recall. 0: makes no
  // sense.
  virtual std::int64_t recall_k(std::int64_t tokens, int layer = 0) const { return options_.k.at(layer).of(tokens); }

  // Keeps what the method needs of a sequence besides its cache; null for most. Methods with the same key share it.
  virtual std::string state_key() const { return {}; }
  virtual std::unique_ptr<MethodState> make_state(const AttentionShape&, gpu::Backend&) const { return nullptr; }
  // From what MethodState::save() gave. Throws Error, without the file's name, when it is not that of such a method.
  virtual std::unique_ptr<MethodState> load_state(const AttentionShape&, gpu::Backend&,
                                                  std::span<const std::byte>) const;
  // Host memory of that state, for a sequence of `tokens`; what a planner can know before it is there.
  virtual std::uint64_t state_bytes(const AttentionShape&, std::int64_t) const { return 0; }
  // True where each of several ranks keeps it of the whole sequence, rather than of its own blocks.
  virtual bool state_is_whole() const { return false; }

 protected:
  // By default the newest w positions and the whole tail are attended, and k in all per list.
  virtual SelectionPlan plan_selection(const gpu::CacheView& cache, int query_heads) const;
  // Returns how a step that selects ranks positions; `plan` says how many of which. Where the plan has no lists, or the
  // method a search of its own, it is not asked.
  virtual Ranking ranking(const Step& step, const SelectionPlan& plan) const;
  virtual Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const = 0;
  // Does all of a step of a method with a search of its own, with the help of its Attender.
  virtual Counters attend_itself(const Step& step, const SelectionPlan& plan) const;
  virtual const Method& chosen(const gpu::CacheView& /*cache*/, int /*query_heads*/) const { return *this; }

  MethodOptions options_;
  MethodTraits traits_;
  index::RankingOptions by_;
};

// w of methods after SparQ, where a user has not given one: a quarter of k (section 4).
inline std::int64_t sparq_window(const MethodOptions& options, std::int64_t tokens, int layer) {
  return options.window ? std::min(*options.window, tokens) : options.k.at(layer).of(tokens) / 4;
}

// `auto` chooses anew when the tail has grown by such a part of a block.
inline constexpr int tail_parts = 8;
// Counts the parts that are full.
inline std::int64_t tail_part(const gpu::CacheView& cache) {
  return cache.tail.tokens * tail_parts / cache.store.layout->block_tokens;
}

// Sessions share methods, which are immutable.
using SharedMethod = std::shared_ptr<const Method>;

// Throws Error, naming the option, when those that the method uses are out of range for heads of dimension `head_dim`;
// also where what was registered under its name makes none.
SharedMethod make_method(const MethodOptions& options, int head_dim);

// Makes `name` a method like the others from now on: parse_method() and make_method() know it, with the options k,
// window and select. `make` may be called from any thread. Throws Error on a name that is taken or has other characters
// than letters, digits, '_' and '-', and where there is no function.
void register_method(const std::string& name, std::function<std::unique_ptr<Method>(const MethodOptions&)> make);
bool is_registered_method(std::string_view name);  // by that function

// One per method, each in its own file.
std::unique_ptr<Method> make_dense(const MethodOptions& options);
std::unique_ptr<Method> make_sparq(const MethodOptions& options);    // SparQ: columns, then rows
std::unique_ptr<Method> make_topk(const MethodOptions& options);     // exact search, then rows
std::unique_ptr<Method> make_window(const MethodOptions& options);   // sinks and the newest
std::unique_ptr<Method> make_ann(const MethodOptions& options);      // an index, then rows
std::unique_ptr<Method> make_flexgen(const MethodOptions& options);  // all of K, then values
std::unique_ptr<Method> make_h2o(const MethodOptions& options);      // heavy hitters and the newest
std::unique_ptr<Method> make_lowrank(const MethodOptions& options);  // projections, then rows
std::unique_ptr<Method> make_pages(const MethodOptions& options);    // bounds of pages, then rows
std::unique_ptr<Method> make_planes(const MethodOptions& options);   // bit planes of columns, then rows
std::unique_ptr<Method> make_oracle(const MethodOptions& options);   // SparQ with a perfect step 1

// Whichever of `dense`, `sparq`, `planes` and `topk` is predicted to be fastest (runtime/attention/method_ladder.h).
SharedMethod make_auto(const MethodOptions& options, int head_dim);

}  // namespace hayloft::runtime
