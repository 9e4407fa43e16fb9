#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/backend.h"
#include "gpu/sparse_causal.h"
#include "offload/host/threads.h"

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

// Blocks of keys, ascending; none where all are read.
using ChosenKeys = std::optional<std::vector<std::int32_t>>;

// Chooses for the queries q f32 [T][Hq][d] of a chunk, the first of which sits at position `first`. Thread-safe; what a
// block of queries gets depends on the chunk and the keys alone.
class KeyBlockChoice {
 public:
  KeyBlockChoice(const CacheView& cache, const float* q, int query_heads, std::int64_t first, const SparseCausal& how)
      : cache_(cache), q_(q), query_heads_(query_heads), first_(first), how_(how) {}

  // Returns which of the blocks before them the queries read, for each block of queries; these belong to one KV head
  // and ascend. What is read, and what it caught of every eighth block of queries, is added to `read`.
  std::vector<ChosenKeys> choose(std::span<const QueryBlock> queries, const offload::Threads& threads,
                                 SparseRead& read) const;

  // Returns how many whole blocks of keys lie before the queries.
  std::int64_t blocks_before(const QueryBlock& queries) const { return (first_ + queries.begin) / sparse_key_block; }

 private:
  struct Batch;   // blocks of queries that are scored together
  struct Masses;  // softmax masses of one block's queries

  Batch sample(std::span<const QueryBlock> queries) const;
  void score(Batch& batch, const offload::Threads& threads) const;
  Masses masses(const Batch& batch, std::size_t block) const;
  ChosenKeys choose(const Batch& batch, std::size_t block, SparseRead& read) const;
  std::vector<std::int32_t> heaviest(const Masses& all, int rows) const;
  // Scores of n keys from `from` on for rows of q, f32 [rows][kScoredKeys], by way of `keys`, f32 [kScoredKeys][d].
  void score_keys(int head, std::int64_t from, int n, const float* q, int rows, float* keys, float* scores) const;

  const CacheView& cache_;
  const float* q_;
  int query_heads_;
  std::int64_t first_;
  SparseCausal how_;
};

}  // namespace hayloft::gpu
