#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "offload/store/store.h"
#include "runtime/attention/method.h"

// Observers of decode steps, for measuring what a method does.
namespace hayloft::runtime {

// One decode step in one global layer, as it has just been done. Valid during the call only.
struct ObservedStep {
  gpu::Backend& backend;
  gpu::Stream stream;
  int layer;                    // of the model
  const gpu::CacheView& cache;  // the token itself included
  const offload::Store& store;  // which the view reads; may be forked
  int query_heads;
  const float* q;    // f32 [Hq][d], device memory
  const float* out;  // f32 [Hq][d], device memory: what the method made of it
  const StepTrace& trace;
  const Method& method;  // that attended: of `auto`, the one that was chosen
  MethodState* state;    // that it attended with; null for methods without
};

// Called by the thread that decodes; the step waits until it returns.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // Called once for each step and global layer, in their order, before the layer attends: only the steps that are
  // wanted are traced and passed to see(). `position` is that of the step's token.
  virtual bool wants(int layer, std::int64_t position) = 0;
  virtual void see(const ObservedStep& step) = 0;
};

}  // namespace hayloft::runtime
