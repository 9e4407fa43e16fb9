#pragma once

#include <optional>

#include "gpu/backend.h"
#include "offload/store/store.h"
#include "runtime/attention/method.h"

namespace hayloft::runtime {

// One global layer of a forward pass over T tokens, whose keys and values are in the cache already.
struct GlobalLayer {
  gpu::Backend& backend;
  gpu::Stream stream;
  int layer;                    // of the model
  const gpu::CacheView& cache;  // cache.layer counts the global layers; the T tokens are its newest
  const offload::Store& store;  // which the view reads
  int query_heads;
  int T;
  MethodScratch& scratch;
};

// How the global layers of a model attend in a forward pass, which knows nothing else about it: PrefillAttention while
// a prompt is read, DecodeAttention for one token. q and out are f32 [.][Hq][d] in memory of the device, in the order
// of the tokens; q is rotated and normed.
class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;

  // Of how many of the newest tokens the queries are to be shown in this layer, though none may attend: 0 to T.
  virtual int queries_wanted(const GlobalLayer&) const { return 0; }
  // The queries of the newest n tokens, at least as many as wanted. Called before attend().
  virtual void see_queries(const GlobalLayer&, const float* /*q*/, int /*n*/) {}
  // The output of the newest `rows` tokens, 1 to T.
  virtual void attend(const GlobalLayer& at, const float* q, int rows, float* out) = 0;
  // attend() of one row, which may be left to the caller, who does it for several sequences at once
  // (gpu::Backend::attend_together): what q is to attend to; none where `out` is done.
  virtual std::optional<gpu::Attended> attend_or_leave(const GlobalLayer& at, const float* q, float* out) {
    attend(at, q, 1, out);
    return {};
  }
};

}  // namespace hayloft::runtime
