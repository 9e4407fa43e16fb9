#pragma once

#include <cstdint>

#include "offload/half.h"

// Attention over rows of the cache, one KV head at a time: SIMD kernels, single-threaded, called from the parallel
// operations. Rows are f16 [K | V] of 2 d elements and are named by pointers, so that blocks, tail and gathered
// positions look alike.
namespace hayloft::gpu {

// g query heads of one KV head and what they have seen so far.
struct QueryGroup {
  const float* q = nullptr;   // f32 [g][stride], already divided by sqrt(d)
  int queries = 0;            // g
  int head_dim = 0;           // d
  int stride = 0;             // padded(d): floats from query head to query head, in q and weighted
  float* weighted = nullptr;  // f32 [g][stride]; AttentionState, one per query head
  float* max = nullptr;       // f32 [g]
  float* sum = nullptr;       // f32 [g]
};

// Rows that attend_rows() takes into the softmax at a time.
inline constexpr int kTileRows = 32;

// Online softmax over n rows, each read once: brings the group's states up to date with them. Rows ahead are
// prefetched, the order of `rows` is the order of accumulation. Calls over parts of the rows, all but the last of a
// multiple of kTileRows, give the same bits as one over all; and what a query head gets does not depend on the others
// of its group.
void attend_rows(const f16* const* rows, std::int64_t n, const QueryGroup& group);

// Brings (max, sum) of the group up to date with the scores of n rows' keys; `weighted` is not used.
void sum_rows(const f16* const* rows, std::int64_t n, const QueryGroup& group);

// total [d] += sum of V over n rows, in double except that neighbours are first added up in f32, eight at a time.
void add_values(const f16* const* rows, std::int64_t n, int head_dim, double* total);

}  // namespace hayloft::gpu
