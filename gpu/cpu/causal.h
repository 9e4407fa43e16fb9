#pragma once

#include "gpu/backend.h"

namespace hayloft::gpu {

// Backend::attend_causal. Blocks of queries against tiles of keys: two matrix products and one online softmax step per
// pair, touching only the tiles that hold a visible key, so a window costs O(T * (window + sinks)). Blocks and tiles do
// not depend on the number of threads.
void attend_causal_cpu(const CacheView& cache, const float* q, int T, int query_heads, const CausalWindow& window,
                       float* out, const offload::Threads& threads);

}  // namespace hayloft::gpu
