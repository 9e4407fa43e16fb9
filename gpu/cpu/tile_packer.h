#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/prefill_tile.h"

namespace hayloft::gpu {

// Fills a tile with keys of one KV head, wherever they lie.
class TilePacker {
 public:
  TilePacker(const CacheView& cache, int head, const KeyTile& tile)
      : cache_(cache), head_(head), tile_(tile), row_halves_(2 * static_cast<std::size_t>(cache.head_dim)) {
    if (!plain_rows(cache)) space_.resize(kPackedKeys * row_halves_);
  }

  // Adds the n keys from a position on; the tile has room for them.
  void add(std::int64_t from, int n) {
    for (int i = 0; i < n; ++i) {
      const std::size_t slot = static_cast<std::size_t>(count_) % kPackedKeys;
      rows_[slot] = row_of(cache_, head_, from + i, space_.empty() ? nullptr : space_.data() + slot * row_halves_);
      if (++count_ % kPackedKeys == 0) pack_keys(rows_, kPackedKeys, count_ - kPackedKeys, tile_);
    }
  }

  // Returns how many keys lie in the tile, and begins it anew.
  int finish() {
    if (const int rest = count_ % kPackedKeys; rest != 0) pack_keys(rows_, rest, count_ - rest, tile_);
    return std::exchange(count_, 0);
  }

 private:
  const CacheView& cache_;
  int head_;
  const KeyTile& tile_;
  std::size_t row_halves_;
  const f16* rows_[kPackedKeys];
  std::vector<f16> space_;  // of rows that are not f16 where they lie
  int count_ = 0;
};

}  // namespace hayloft::gpu
