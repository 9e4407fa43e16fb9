#pragma once

#include "gpu/backend.h"
#include "runtime/attention/method.h"

namespace hayloft::runtime {

// The share of the true top-k positions, by exact scores over the whole cache, that a step attended to: the mean over
// the step's lists. Per query head the truth ranks by q . K; per KV head by the group's sum of softmaxes. q is f32
// [Hq][d] in device memory. Searched near the memory; blocks.
double recall(gpu::Backend& backend, const gpu::CacheView& cache, const float* q, int query_heads,
              const StepTrace& trace, std::int64_t k, index::SelectPer per);

}  // namespace hayloft::runtime
