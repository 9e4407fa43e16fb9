#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

// Prefill that attends to chosen blocks of keys: blocks of queries, per KV head, read the blocks of keys that hold most
// of the softmax mass of a few of their own queries, which are scored exactly.
namespace hayloft::gpu {

inline constexpr int sparse_key_block = 16;  // keys that are chosen together, aligned to positions

// Says how many blocks of keys are read. The first block, and all keys from the block of queries on, always are; so is
// every key where fewer than `dense_keys` lie before.
struct SparseCausal {
  double mass = 0.98;     // of the softmax, that the blocks hold on average over a KV head's query heads; in (0, 1]
  double density = 0;     // instead, where above 0: this share of the blocks before, in (0, 1]
  double fidelity = 0;    // instead, where above 0: as mass, of queries that have no part in the order of the blocks
  int dense_keys = 1024;  // shorter contexts cost more to choose from than to read
};

// Counts what was read, and how much of the softmax mass that caught, by queries that had no part in the choice. Whole
// numbers, so that sums do not depend on the order of threads.
struct SparseRead {
  static constexpr double unit = 0x1p-40;  // of `caught`

  // Queries of one query head.
  struct Head {
    std::uint64_t rows = 0;    // queries measured
    std::uint64_t caught = 0;  // their masses, in units
    double share() const { return rows == 0 ? 1 : static_cast<double>(caught) * unit / static_cast<double>(rows); }
  };
  // Choices of one KV head, each for a block of queries.
  struct Choices {
    std::uint64_t made = 0;
    std::uint64_t whole = 0;  // that came to all keys
  };
  std::uint64_t visible = 0;     // pairs of a query and a key at or before it
  std::uint64_t attended = 0;    // of these, those that were read
  std::vector<Head> heads;       // [Hq]; empty before the first chunk
  std::vector<Choices> choices;  // [Hkv]; likewise

  void add(const SparseRead& other) {
    visible += other.visible;
    attended += other.attended;
    heads.resize(std::max(heads.size(), other.heads.size()));
    for (std::size_t h = 0; h < other.heads.size(); ++h) {
      heads[h].rows += other.heads[h].rows;
      heads[h].caught += other.heads[h].caught;
    }
    choices.resize(std::max(choices.size(), other.choices.size()));
    for (std::size_t h = 0; h < other.choices.size(); ++h) {
      choices[h].made += other.choices[h].made;
      choices[h].whole += other.choices[h].whole;
    }
  }
  double density() const { return visible == 0 ? 1 : static_cast<double>(attended) / static_cast<double>(visible); }
};

}  // namespace hayloft::gpu
