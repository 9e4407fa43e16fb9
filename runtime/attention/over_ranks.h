#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention/method.h"
#include "runtime/cache/cache_size.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/part.h"

// Attention to a context that ranks hold together (offload/store/shard.h). Every rank has the queries and makes the
// same calls; each attends to its part, and what all have is merged. So the outputs are the same on all ranks, and but
// for the order in which parts are merged those of one machine.
namespace hayloft::runtime {

// Throws Error, and says what does, unless the method attends over ranks; and to a cache of these options, whose block
// size may be 0: not chosen yet.
void require_over_ranks(const MethodOptions& method);
void require_over_ranks(const MethodOptions& method, const CacheOptions& cache);
void require_over_ranks(const gpu::Backend& backend);

// What this rank's part of the attention leaves, brought to the host; q and what `what` points to are device memory.
cluster::AttentionParts attend_part(const Step& step, const cluster::Part& part, const float* q, gpu::Attended what);

// As attend_positions() and attend_selection(), with the positions [lists][k] of all ranks, whole ones, in host memory.
// alpha [Hq], on the host: null: outputs as they are. One all-gather.
void attend_over_ranks(const Step& step, const SelectionPlan& plan, const float* q,
                       const std::vector<std::int32_t>& positions, const float* alpha, float* out);

// Prefill: as gpu::Backend::attend_causal() without a window. An all-gather for each 64 MiB that come together, one at
// least.
void attend_causal_over_ranks(cluster::Communicator& ranks, gpu::Backend& backend, const gpu::CacheView& cache,
                              const float* q, int T, int query_heads, float* out, gpu::Stream stream);

// What that takes of the device's memory, at most.
std::uint64_t prefill_bytes_over_ranks(int query_heads, int head_dim, int T, int ranks);

}  // namespace hayloft::runtime
