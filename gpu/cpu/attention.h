#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "gpu/attention_state.h"
#include "gpu/backend.h"

// The pieces every attention operation of the CPU backend is made of.
namespace hayloft::gpu {

// Returns whether the rows of the store are f16, so that row_of() only points to them.
inline bool plain_rows(const CacheView& cache) {
  return cache.store.tokens == 0 || cache.store.layout->row_format == offload::RowFormat::f16;
}

// The [K | V] row of an absolute position, in the store or in the tail; rows of integers are read into `space`, f16
// [2 d], which may be null where there are none.
inline const f16* row_of(const CacheView& cache, int head, std::int64_t position, f16* space) {
  if (position < cache.store.tokens) {
    // As LayerView::row, without its division: this runs once per row attended.
    const offload::BlockLayout& layout = *cache.store.layout;
    const std::int64_t block = position >> std::countr_zero(static_cast<unsigned>(layout.block_tokens));
    const std::int64_t slot = position & (layout.block_tokens - 1);
    const std::byte* const from = cache.store.blocks[static_cast<std::size_t>(block)];
    if (layout.row_format == offload::RowFormat::f16) return f16_row(layout, from, head, static_cast<int>(slot));
    read_rows(layout, from, head, static_cast<int>(slot), 1, space);
    return space;
  }
  const std::int64_t slot = cache.tail.first + position - cache.tail.position;
  return cache.tail.rows + (head * cache.tail.capacity + slot) * 2 * cache.head_dim;
}

// Points to the rows of n positions from `first` on, as row_of() does where rows are plain, block by block: to work out
// each row's place by itself takes a tenth of the time of the attention to it.
inline void point_to_rows(const CacheView& cache, int head, std::int64_t first, std::int64_t n, const f16** rows) {
  const std::int64_t step = 2 * cache.head_dim;
  for (std::int64_t row = 0; row < n;) {
    const std::int64_t at = first + row;
    std::int64_t run = n - row;
    if (at < cache.store.tokens) {
      const std::int64_t block = cache.store.layout->block_tokens;
      run = std::min(run, std::min(block - at % block, cache.store.tokens - at));
    }
    const f16* from = row_of(cache, head, at, nullptr);
    for (const std::int64_t end = row + run; row < end; ++row, from += step) rows[row] = from;
  }
}

// The oldest position that the cache still holds: 0 with a store, else where the tail begins.
inline std::int64_t first_position(const CacheView& cache) {
  return cache.store.tokens > 0 ? 0 : cache.tail.position;
}

// Head dimensions are padded to this many floats in scratch, so that kernels store whole vectors.
inline constexpr int kPadFloats = 16;
inline int padded(int head_dim) {
  return (head_dim + kPadFloats - 1) / kPadFloats * kPadFloats;
}

}  // namespace hayloft::gpu
