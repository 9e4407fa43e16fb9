#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/backend.h"
#include "runtime/counters.h"

namespace hayloft::runtime {

// A number of positions, or a share of the context.
struct Budget {
  std::int64_t count = 0;
  double share = 0;  // used when count is 0

  std::int64_t of(std::int64_t tokens) const;  // at least 1, at most tokens
  std::string text() const;                    // "128" or "1%"
};
Budget parse_budget(std::string_view text, std::string_view option);  // throws Error naming the option

// What a user can choose about a method. Which fields matter depends on the method; `check` knows.
struct MethodOptions {
  std::string name = "dense";
  int rank = 16;                       // r
  Budget k{128, 0};                    // positions attended, the local window counted in
  std::optional<std::int64_t> window;  // w; default: sparq k / 4, topk 0, window k - sinks
  std::int64_t sinks = 4;              // s, of `window`
  bool mean_value = true;              // SparQ step 3
  index::GroupRule rule = index::GroupRule::softmax;
  std::optional<index::SelectPer> per;  // default: sparq per KV head, topk per query head
  bool faiss = false;                   // topk by Faiss' flat index
};

// What one step attended to, copied to the host for recall and for `hayloft attend`.
struct StepTrace {
  std::vector<std::int32_t> positions;  // [lists][k], from the store
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
  virtual std::int64_t window(std::int64_t tokens) const = 0;  // w at this length
  virtual void attend(const Step& step, const float* q, float* out) const = 0;
  // What attend() adds to the step's counters. Looks at the cache's shape and its numbers of tokens only, so the
  // planner counts steps of caches that do not exist.
  virtual Counters count(const gpu::CacheView& cache, int query_heads) const = 0;

  // How many of the true top-k a perfect method of this kind would fetch: what recall is measured against. 0: makes no
  // sense.
  virtual std::int64_t recall_k(std::int64_t tokens) const { return options_.k.of(tokens); }

 protected:
  MethodOptions options_;
};

// Throws Error (naming the option) when the options are out of range for heads of dimension `head_dim`.
std::unique_ptr<Method> make_method(const MethodOptions& options, int head_dim);

// "dense", "sparq:r=8:k=256", "topk:k=1%": a method with options that override `defaults`. Throws Error on an unknown
// name or key.
MethodOptions parse_method(std::string_view text, const MethodOptions& defaults);

std::vector<std::string> method_names();

// Shared by the methods. Positions buffer for `count` entries, alpha for Hq.
std::int32_t* positions_for(const Step& step, std::int64_t count);
float* alpha_for(const Step& step);
void record(const Step& step, const gpu::Attended& what);

// One per method, each in its own file.
std::unique_ptr<Method> make_dense(const MethodOptions& options);
std::unique_ptr<Method> make_sparq(const MethodOptions& options);
std::unique_ptr<Method> make_topk(const MethodOptions& options);
std::unique_ptr<Method> make_window(const MethodOptions& options);

}  // namespace hayloft::runtime
