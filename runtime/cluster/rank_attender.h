#pragma once

#include <cstdint>

#include "runtime/attention/attender.h"
#include "runtime/peers/communicator.h"

// Attention to a context that ranks hold together (offload/store/shard.h). Every rank has the queries and makes the
// same calls; each attends to its part, and what all have is merged. So the outputs are the same on all ranks, and but
// for the order in which parts are merged those of one machine.
namespace hayloft::runtime::cluster {

// Attends over these ranks, which must outlive it: exactly while a prompt is read, by the methods that
// require_over_ranks() lets pass while it is decoded.
SharedAttender rank_attender(Communicator& ranks);

// Attender::require() of ranks, for caches of any options.
void require_over_ranks(const MethodOptions& method);
// Likewise, for such a cache.
void require_over_ranks(const MethodOptions& method, const CacheOptions& cache);

// Attender::prefill_bytes() of so many ranks.
std::uint64_t prefill_bytes_over_ranks(int query_heads, int head_dim, int T, int ranks);

}  // namespace hayloft::runtime::cluster
