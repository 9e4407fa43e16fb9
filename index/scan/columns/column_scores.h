#pragma once

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <vector>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/search.h"

// The keys of one KV head as search_columns walks them: in tiles of a fixed number of tokens that start at its
// multiples, whatever the block size. Rows are transposed into f16 columns a tile at a time, so that their scores are
// those of an f16 mirror to the bit.
namespace hayloft::index {

class ColumnScores {
 public:
  // Query heads [first, first + heads) of KV head `head`. The view and the search must outlive it.
  ColumnScores(const offload::LayerView& view, const ColumnSearch& search, int head, int first, int heads, int tile);
  ColumnScores(const ColumnScores&) = delete;
  ColumnScores& operator=(const ColumnScores&) = delete;

  // Tokens per tile for a group of query heads: its scores stay in the first-level cache.
  static int tile_tokens(const ColumnSearch& search, int group);
  // Floats from one query head's scores to the next. Not a power of two: those would compete for the same cache sets.
  static int stride(int tile) { return tile + 80; }

  // scores[h][t - begin] for t in [begin, end), which lies in one tile; begin is a multiple of 64. Up to the next
  // multiple of 64 past `end` the scores are -infinity. Unless null, notes are taken of the quantisation groups.
  void score(std::int64_t begin, std::int64_t end, float* scores, const TileNotes* notes = nullptr);
  // Asks for the tokens [begin, end) of one tile to be brought near.
  void prefetch(std::int64_t begin, std::int64_t end) const;

 private:
  TokenRun run_at(std::int64_t position) const;  // in the columns; none past the end
  void score_run_at(std::int64_t begin, int tokens, float* scores, const TileNotes* notes);

  const offload::LayerView& view_;
  int head_;
  int tile_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> scale_offsets_;
  std::vector<std::uint8_t> planes_;
  HeadQuery query_;
  std::int64_t transposed_stride_ = 0;  // elements from component to component
  // f16 [d][transposed_stride_], where rows are transposed; null: columns
  hwy::AlignedFreeUniquePtr<std::uint16_t[]> transposed_;
  std::vector<f16> rows_;  // of a tile, where those of the store are integers
};

}  // namespace hayloft::index
