#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/backend.h"
#include "gpu/sparse_causal.h"

// The blocks of keys that a block of queries reads in sparse prefill.
namespace hayloft::gpu {

// Tokens that prefill takes together, whose query heads of a group are the rows of one matrix.
inline int query_block_tokens(int group) {
  return std::max(1, 256 / group);
}

// Consecutive tokens of a chunk, for one KV head.
struct QueryBlock {
  int head = 0;
  int begin = 0;   // the first token, in the chunk
  int tokens = 0;  // how many
};

// Chooses for the queries q f32 [T][Hq][d] of a chunk, the first of which sits at position `first`. Thread-safe; what a
// block of queries gets depends on it and the keys alone.
class KeyBlockChoice {
 public:
  KeyBlockChoice(const CacheView& cache, const float* q, int query_heads, std::int64_t first, const SparseCausal& how)
      : cache_(cache), q_(q), query_heads_(query_heads), first_(first), how_(how) {}

  // Returns the blocks before the queries that are read, ascending; none where all keys are. What is read, and what it
  // caught of every eighth block of queries, is added to `read`.
  std::optional<std::vector<std::int32_t>> choose(const QueryBlock& queries, SparseRead& read) const;

  // Returns how many whole blocks of keys lie before the queries.
  std::int64_t blocks_before(const QueryBlock& queries) const { return (first_ + queries.begin) / sparse_key_block; }

 private:
  // Softmax masses of some of the queries: rows [tokens][query heads of the group].
  struct Masses {
    int rows = 0;
    std::vector<float> blocks;  // [rows][blocks before]
    std::vector<float> own;     // [rows], of the keys behind those
  };
  Masses masses(const QueryBlock& queries, const std::vector<int>& tokens) const;
  std::vector<std::int32_t> heaviest(const Masses& sampled, std::int64_t blocks) const;
  void measure(const QueryBlock& queries, const std::vector<std::int32_t>* chosen, SparseRead& read) const;

  const CacheView& cache_;
  const float* q_;
  int query_heads_;
  std::int64_t first_;
  SparseCausal how_;
};

}  // namespace hayloft::gpu
