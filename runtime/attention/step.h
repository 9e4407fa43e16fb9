#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/backend.h"
#include "index/scan/kept_scores.h"
#include "offload/store/store.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method_state.h"

namespace hayloft::runtime {

class Attender;
struct LineSamples;

// Memory that a method needs from step to step. Grows, never shrinks; one per session.
struct MethodScratch {
  gpu::Buffer positions;  // of the device
  gpu::Buffer alpha;      // likewise
  index::KeptScores kept;
  std::shared_ptr<LineSamples> lines;  // the keys that lines of a rest by scores are fitted over
};

// One global layer of a forward pass over T tokens, whose keys and values are in the cache already. Made once for each
// layer and passed by reference to whoever has to do with its attention.
struct LayerStep {
  gpu::Backend& backend;
  gpu::Stream stream;
  int layer;                    // of the model
  const gpu::CacheView& cache;  // cache.layer counts the global layers; the T tokens are its newest
  const offload::Store& store;  // which the view reads; may be forked
  int query_heads;
  int T;
  MethodScratch& scratch;

  int head_dim() const { return cache.head_dim; }
  int kv_heads() const { return cache.kv_heads; }
  int group() const { return query_heads / cache.kv_heads; }
  std::int64_t query_elements() const { return std::int64_t{query_heads} * cache.head_dim; }
  std::int64_t tokens() const { return cache.tokens(); }
};

// Positions that one step attended to, copied to the host for recall and for `hayloft attend`.
struct StepTrace {
  std::vector<std::int32_t> positions;  // [lists][k], ascending; from the store, or of what `h2o` keeps
  int lists = 0;
  int k = 0;
  gpu::Attended::Range ranges[2];
  std::vector<float> alpha;  // [Hq], empty where the method has none
};

// A step tells this of its own output: every one whose rest is estimated by scores, and some of those that score every
// position without.
struct StepEstimate {
  std::vector<float> error;     // [Hq], predicted: |y - y of dense attention| / |y|
  std::vector<float> attended;  // [Hq], the estimated share of the softmax on what was attended exactly
};

// One decode token in one global layer, by one method.
struct Step {
  const LayerStep& at;  // of one token
  const float* q;       // f32 [Hq][d], device memory
  float* out;           // likewise
  const Attender& attender;
  MethodState* state = nullptr;  // of the method that attends, up to date; null for methods without
  StepTrace* trace = nullptr;    // filled where it is there
  // u64 [5]: SparqSelect's, then that of Attended, then SparqSelect::ahead_bytes; null where the backend keeps nothing.
  unsigned long long* held_bytes = nullptr;
  StepEstimate* estimate = nullptr;  // filled where it is there and the step knows it; else left empty
};

// The query of a step, [Hq][d]. Waits for the device.
std::vector<float> query_on_host(const Step& step);

}  // namespace hayloft::runtime
