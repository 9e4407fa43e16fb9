#pragma once

#include <cstdint>
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

  int head_dim() const { return cache.head_dim; }
  int kv_heads() const { return cache.kv_heads; }
  std::int64_t tokens() const { return cache.tokens(); }
};

// A way of attending (DESIGN section 5): immutable, thread-safe, shared by sessions.
class Method {
 public:
  explicit Method(MethodOptions options) : options_(std::move(options)) {}
  virtual ~Method() = default;

  const MethodOptions& options() const { return options_; }
  virtual std::int64_t window(std::int64_t tokens, int layer = 0) const = 0;  // w at this length
  virtual void attend(const Step& step, const float* q, float* out) const = 0;
  // What attend() adds to the step's counters. Looks at the cache's shape and its numbers of tokens only, so the
  // planner counts steps of caches that do not exist.
  // Where a search visits as many keys as it happens to, an estimate.
  virtual Counters count(const gpu::CacheView& cache, int query_heads) const = 0;

  // How many of the true top-k a perfect method of this kind would fetch: what recall is measured against. 0: makes no
  // sense.
  virtual std::int64_t recall_k(std::int64_t tokens, int layer = 0) const { return options_.k.at(layer).of(tokens); }

  // What the method keeps of a sequence besides its cache; null for most. Methods with the same key share it.
  virtual std::string state_key() const { return {}; }
  virtual std::unique_ptr<MethodState> make_state(const StateShape&, gpu::Backend&) const { return nullptr; }
  // From what MethodState::save() gave. Throws Error, without the file's name, when it is not that of such a method.
  virtual std::unique_ptr<MethodState> load_state(const StateShape&, gpu::Backend&, std::span<const std::byte>) const;
  // Host memory of that state, for a sequence of `tokens`; what a planner can know before it is there.
  virtual std::uint64_t state_bytes(const StateShape&, std::int64_t) const { return 0; }

 protected:
  MethodOptions options_;
};

// Throws Error (naming the option) when the options are out of range for heads of dimension `head_dim`.
std::unique_ptr<Method> make_method(const MethodOptions& options, int head_dim);

// Shared by the methods. Positions buffer for `count` entries, alpha for Hq.
std::int32_t* positions_for(const Step& step, std::int64_t count);
float* alpha_for(const Step& step);
void record(const Step& step, const gpu::Attended& what);

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
std::unique_ptr<Method> make_oracle(const MethodOptions& options);   // SparQ with a perfect step 1

}  // namespace hayloft::runtime
