#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/half.h"
#include "offload/store/layout.h"

// Prefill's inner loops: many rows of queries against a tile of keys and values, which are widened once and laid out in
// panels of as many columns as the registers hold. SIMD kernels, single-threaded, called from the parallel operations.
namespace hayloft::gpu {

inline constexpr int kMostDim = offload::most_head_dim;
inline constexpr int kTileKeys = 256;      // room of a tile
inline constexpr int kPackedKeys = 32;     // keys are packed so many at a time, a multiple of a panel's width
inline constexpr int kPaddedQueries = 24;  // rows of queries are padded to a multiple of this

// Returns how many keys of this dimension fit in a second-level cache beside what reads them.
inline int tile_keys(int head_dim) {
  return head_dim <= 128 ? kTileKeys : head_dim <= 256 ? kTileKeys / 2 : kTileKeys / 4;
}

inline int padded_queries(int rows) {
  return (rows + kPaddedQueries - 1) / kPaddedQueries * kPaddedQueries;
}
// Returns the floats from row to row of what attend_tile() sums up.
inline int weighted_stride(int head_dim) {
  return (head_dim + kPackedKeys - 1) / kPackedKeys * kPackedKeys;
}

// Holds keys and values f32 in panels, whose width w is the instruction set's. Aligned for any vector.
struct KeyTile {
  static std::size_t key_floats(int head_dim) { return static_cast<std::size_t>(kTileKeys) * head_dim; }
  static std::size_t value_floats(int head_dim) {
    return static_cast<std::size_t>(kTileKeys) * weighted_stride(head_dim);
  }

  float* keys = nullptr;    // [kTileKeys / w][d][w]
  float* values = nullptr;  // [d / w, rounded up][kTileKeys][w]; null: keys alone
  int head_dim = 0;         // d
};

// Lays `count` rows f16 [K | V] down as the tile's keys from `at` on, a multiple of kPackedKeys; count <= kPackedKeys,
// and less only for the last.
void pack_keys(const f16* const* rows, int count, int at, const KeyTile& tile);

// scores [rows][kTileKeys] = q . K over the tile's first n keys. q f32 [rows][d], and scores, are padded to
// padded_queries(rows) rows.
void score_tile(const KeyTile& tile, int n, const float* q, int rows, float* scores);

// Holds rows of queries and what they have seen so far, AttentionState; all are padded to padded_queries(rows) rows, of
// which those behind `rows` are finite queries whose sums nobody reads.
struct TileQueries {
  const float* q = nullptr;  // f32 [rows][d], already divided by sqrt(d)
  int rows = 0;
  int group = 1;              // rows of one token
  float* weighted = nullptr;  // f32 [rows][weighted_stride(d)]
  float* max = nullptr;       // f32 [rows]
  float* sum = nullptr;       // f32 [rows]
  float* scores = nullptr;    // f32 [kPaddedQueries][kTileKeys], to work in
};

// Takes a tile's first n keys into the online softmax of the queries. The first token sees keys [begin, end) of them;
// each further token's bounds lie one later. What a row gets does not depend on the others.
void attend_tile(const KeyTile& tile, int n, std::int64_t begin, std::int64_t end, const TileQueries& queries);

// Holds scores of keys that are taken together, `block` at a time, a multiple of 16: s f32 [rows][stride], of which
// `columns` are keys, a multiple of the block. softmax_blocks() replaces s by exp(s - max) of a row's largest, and
// gives that, f32 [rows][pitch], and the sum of each block, f32 [rows][pitch][stride / block].
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
