#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/sparse_causal.h"

// Holds what all backends do alike for sparse prefill: which queries are asked, which blocks of keys their masses
// choose, and what is counted of it.
namespace hayloft::gpu {

// Returns for how many tokens keys are chosen together: some 512 rows of query heads. Half as many want only 1 to 4%
// fewer keys, and are scored at twice the cost.
int sparse_block_tokens(int group);

// Holds consecutive tokens of a chunk, for one KV head.
struct QueryBlock {
  int head = 0;
  int begin = 0;   // the first token, in the chunk
  int tokens = 0;  // how many
};

// Returns the blocks of a chunk of T tokens, in order.
std::vector<QueryBlock> query_blocks(int head, int T, int group);

// Lists blocks of keys, ascending; is empty where all are read.
using ChosenKeys = std::optional<std::vector<std::int32_t>>;

// Returns how many whole blocks of keys lie before the queries of a chunk whose first token sits at `first`.
inline std::int64_t key_blocks_before(std::int64_t first, const QueryBlock& queries) {
  return (first + queries.begin) / sparse_key_block;
}

// Returns whether anything is chosen for the queries, or all keys are read whatever they hold.
inline bool is_chosen_for(std::int64_t first, const QueryBlock& queries, const SparseCausal& how) {
  return first + queries.begin >= how.dense_keys && key_blocks_before(first, queries) > 0;
}

inline constexpr int sparse_sampled_tokens = 4;  // of a block of queries, or all that it has
inline constexpr int sparse_measured_every = 8;  // one block of queries in so many is measured by as many other tokens

// Returns the tokens of the chunk whose queries choose for the block.
std::vector<int> sampled_tokens(const QueryBlock& queries);
// Returns as many others, as far as there are others, whose queries say when enough is chosen; none but for a fidelity.
std::vector<int> stopping_tokens(const QueryBlock& queries, const SparseCausal& how);
// Returns as many others again, whose queries say what the choice catches.
std::vector<int> measured_tokens(const QueryBlock& queries);
// Returns whether what the block's choice caught is measured.
bool is_measured(std::int64_t first, const QueryBlock& queries);

// Sums the softmaxes of some queries of a block, each of which has 1 in all.
struct KeyMass {
  std::vector<double> blocks;  // of each block of keys before the queries
  double own = 0;              // of the keys behind those
  int rows = 0;                // queries
};

// Takes the heaviest blocks of keys by `sampled`, ties to the smaller, until they hold what is wanted: for a fidelity
// by `stopping`, which is empty otherwise. Masses that are not finite count as 0.
ChosenKeys choose_keys(KeyMass sampled, KeyMass stopping, const SparseCausal& how);

// Adds what a block of queries reads.
void count_read(std::int64_t first, const QueryBlock& queries, int group, const SparseCausal& how,
                const ChosenKeys& chosen, SparseRead& read);
// Adds what one measured query caught.
void count_caught(double share, SparseRead::Head& head);

}  // namespace hayloft::gpu
