#pragma once

#include "gpu/backend.h"

namespace hayloft::gpu {

// Backend::attend. The work is cut into pieces of a fixed number of rows whatever the number of threads; every piece
// leaves an AttentionState per query head and merge_states joins them in order, so threads do not change a bit.
void attend_cpu(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
                const offload::Threads& threads);

}  // namespace hayloft::gpu
