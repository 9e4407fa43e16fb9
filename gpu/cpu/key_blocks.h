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

// Returns for how many tokens keys are chosen together: some 512 rows of query heads. Half as many want only 1 to 4%
// fewer keys, and are scored at twice the cost.
inline int sparse_block_tokens(int group) {
  return std::max(1, 512 / group);
}

// Consecutive tokens of a chunk, for one KV head.
struct QueryBlock {
  int head = 0;
  int begin = 0;   // the first token, in the chunk
  int tokens = 0;  // how many
};

// Lists blocks of keys, ascending; is empty where all are read.
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
  ChosenKeys choose_keys(const Batch& batch, std::size_t block, SparseRead& read) const;
  std::vector<std::int32_t> heaviest(const Masses& all, int rows) const;
  // Gives the scores f32 [rows][kTileKeys] of n keys from `from` on, by way of `keys`, KeyTile::key_floats(d).
  void score_keys(int head, std::int64_t from, int n, const float* q, int rows, float* keys, float* scores) const;

  const CacheView& cache_;
  const float* q_;
  int query_heads_;
  std::int64_t first_;
  SparseCausal how_;
};

}  // namespace hayloft::gpu
