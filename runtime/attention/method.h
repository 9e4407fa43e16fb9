#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/backend.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method_options.h"
#include "runtime/attention/method_state.h"
#include "runtime/attention/selection_plan.h"
#include "runtime/cluster/communicator.h"

namespace hayloft::runtime {

// What one step attended to, copied to the host for recall and for `hayloft attend`.
struct StepTrace {
  std::vector<std::int32_t> positions;  // [lists][k], ascending; from the store, or of what `h2o` keeps
  int lists = 0;
  int k = 0;
  gpu::Attended::Range ranges[2];
  std::vector<float> alpha;  // [Hq], empty where the method has none
};

// Device memory that a method needs from step to step. Grows, never shrinks; one per session.
struct MethodScratch {
  gpu::Buffer positions;
  gpu::Buffer alpha;
};

// One decode token in one global layer. q and out are f32 [Hq][d] in device memory; the token itself is in the cache
// already.
struct Step {
  gpu::Backend& backend;
  gpu::Stream stream;
  const gpu::CacheView& cache;
  int query_heads;
  MethodScratch& scratch;
  Counters& counters;
  StepTrace* trace = nullptr;
  MethodState* state = nullptr;  // of the method that attends, up to date; null for methods without
  // u64 [3]: SparqSelect's, then that of Attended; null where the backend keeps nothing.
  unsigned long long* held_bytes = nullptr;
  cluster::Communicator* ranks = nullptr;  // that hold the context together; null: it is whole here

  int head_dim() const { return cache.head_dim; }
  std::int64_t query_elements() const { return std::int64_t{query_heads} * cache.head_dim; }
  int kv_heads() const { return cache.kv_heads; }
  std::int64_t tokens() const { return cache.tokens(); }
};

// A way of attending: immutable, thread-safe, shared by sessions.
class Method {
 public:
  explicit Method(MethodOptions options) : options_(std::move(options)) {}
  virtual ~Method() = default;

  const MethodOptions& options() const { return options_; }
  // Throws Error, and says what to use, unless a step can read key columns of this format.
  void require_columns(offload::ColumnFormat columns) const;
  virtual std::int64_t window(std::int64_t tokens,
                              int layer = 0) const;  // w at this length; 0 unless an option says so

  // Attends, adds what that costs to the step's counters and fills its trace, where it has one.
  void attend(const Step& step, const float* q, float* out) const;
  // What attend() adds to the counters. Looks at the cache's shape and its numbers of tokens only, so the planner
  // counts steps of caches that do not exist. Where a search visits as many keys as it happens to, an estimate.
  Counters count(const gpu::CacheView& cache, int query_heads) const;
  // What a step attends to by a method that selects no positions, whatever its query: attend() is then
  // gpu::Backend::attend() of these ranges, and count(). None by any other method.
  std::optional<gpu::Attended> ranges(const gpu::CacheView& cache, int query_heads) const;

  // The method that attends to such a cache: this one, but by `auto`, which leaves that to others. It depends on the
  // shape of the cache, the tokens in its store and tail_part() of it, on nothing else, so that it can be kept while
  // these stay. It lives as long as this one.
  virtual const Method& chosen(const gpu::CacheView& /*cache*/, int /*query_heads*/) const { return *this; }

  // How many of the true top-k a perfect method of this kind would fetch: what recall is measured against. 0: makes no
  // sense.
  virtual std::int64_t recall_k(std::int64_t tokens, int layer = 0) const { return options_.k.at(layer).of(tokens); }

  // What the method keeps of a sequence besides its cache; null for most. Methods with the same key share it.
  virtual std::string state_key() const { return {}; }
  virtual std::unique_ptr<MethodState> make_state(const AttentionShape&, gpu::Backend&) const { return nullptr; }
  // From what MethodState::save() gave. Throws Error, without the file's name, when it is not that of such a method.
  virtual std::unique_ptr<MethodState> load_state(const AttentionShape&, gpu::Backend&,
                                                  std::span<const std::byte>) const;
  // Host memory of that state, for a sequence of `tokens`; what a planner can know before it is there.
  virtual std::uint64_t state_bytes(const AttentionShape&, std::int64_t) const { return 0; }
  // Whether each of several ranks keeps it of the whole sequence, rather than of its own blocks.
  virtual bool state_is_whole() const { return false; }

 protected:
  // The three parts of a step. The plan is made once and handed to the others; by default the newest w positions and
  // the whole tail are attended, and k in all per list of selection_per().
  virtual SelectionPlan plan_selection(const gpu::CacheView& cache, int query_heads) const;
  virtual index::SelectPer selection_per() const { return selects_per(options_); }
  virtual bool selects() const { return true; }  // false: the plan's ranges are all, and attend_planned() is as below
  // Attends as planned and returns what that costs: count_planned(), but where only the search knows. By default no
  // positions are selected: the plan's ranges are all.
  virtual Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const;
  virtual Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const = 0;

  MethodOptions options_;
};

// `auto` chooses anew when the tail has grown by such a part of a block.
inline constexpr int tail_parts = 8;
// How many of these parts are full.
inline std::int64_t tail_part(const gpu::CacheView& cache) {
  return cache.tail.tokens * tail_parts / cache.store.layout->block_tokens;
}

// Sessions share methods, which are immutable.
using SharedMethod = std::shared_ptr<const Method>;

// Throws Error (naming the option) when the options are out of range for heads of dimension `head_dim`.
SharedMethod make_method(const MethodOptions& options, int head_dim);

// Makes `name` a method like the others from now on: parse_method() and make_method() know it, with the options k,
// window and select. `make` may be called from any thread. Throws Error on a name that is taken or has other characters
// than letters, digits, '_' and '-'.
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
