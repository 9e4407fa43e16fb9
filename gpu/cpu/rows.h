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

// One tile of prefill's scores: s f32 [rows][stride], of which `columns` are keys, `columns` <= stride and stride a
// multiple of 16. Row m belongs to token m / queries, the first of which attends to tile columns [begin, end); each
// further token's bounds lie one later. Replaces s by exp(s - max), zero outside the bounds and up to stride, and
// rescales the states' weighted sums [rows][head_dim] where a maximum grows.
struct ScoreTile {
  float* s = nullptr;
  int rows = 0;
  int columns = 0;
  int stride = 0;
  int queries = 0;  // rows per token
  std::int64_t begin = 0;
  std::int64_t end = 0;
  float* weighted = nullptr;
  int head_dim = 0;
  float* max = nullptr;  // f32 [rows]
  float* sum = nullptr;  // f32 [rows]
};
void softmax_tile(const ScoreTile& tile);

// Scores of keys that are taken together, `block` at a time, a multiple of 16: s f32 [rows][stride], of which `columns`
// are keys, a multiple of the block. Replaces s by exp(s - max) of a row's largest, and gives that, f32 [rows][pitch],
// and the sum of each block, f32 [rows][pitch][stride / block].
struct BlockScores {
  float* s = nullptr;
  int rows = 0;
  int columns = 0;
  int stride = 0;
  int block = 0;
  std::int64_t pitch = 0;
  float* max = nullptr;
  float* sum = nullptr;
};
void softmax_blocks(const BlockScores& scores);

}  // namespace hayloft::gpu
