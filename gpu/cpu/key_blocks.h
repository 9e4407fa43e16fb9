#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/backend.h"
#include "gpu/sparse_choice.h"
#include "offload/host/threads.h"

// The blocks of keys that a block of queries reads in sparse prefill.
namespace hayloft::gpu {

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

 private:
  struct Batch;   // blocks of queries that are scored together
  struct Masses;  // softmax masses of one block's queries

  Batch sample(std::span<const QueryBlock> queries) const;
  void score(Batch& batch, const offload::Threads& threads) const;
  Masses masses(const Batch& batch, std::size_t block) const;
  ChosenKeys choose_block(const Batch& batch, std::size_t block, SparseRead& read) const;
  // Gives the scores f32 [rows][kTileKeys] of n keys from `from` on, by way of `keys`, KeyTile::key_floats(d).
  void score_keys(int head, std::int64_t from, int n, const float* q, int rows, float* keys, float* scores) const;

  const CacheView& cache_;
  const float* q_;
  int query_heads_;
  std::int64_t first_;
  SparseCausal how_;
};

}  // namespace hayloft::gpu
