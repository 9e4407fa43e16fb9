#include "gpu/cpu/prefill_tile.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/prefill_tile.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/panel-inl.h"
#include "gpu/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Blocks that read a panel one after the other while it lies in the first-level cache.
constexpr int kBlocks = 2;
static_assert(kPaddedQueries % (kBlockRows * kBlocks) == 0);

// Scores so many blocks of rows against the panels that hold keys [from, to).
HWY_INLINE void score_rows(const KeyTile& tile, int from, int to, const float* q, int blocks, float* scores) {
  const int width = panel_width();
  const std::size_t d = static_cast<std::size_t>(tile.head_dim);
  for (int key = from / width * width; key < to; key += width) {
    for (int block = 0; block < blocks; ++block) {
      multiply_panel<Sum::fresh>(BlockRows(), q + block * kBlockRows * d, d, tile.keys + key * d, width, tile.head_dim,
                                 scores + block * kBlockRows * kTileKeys + key, kTileKeys);
    }
  }
}

void pack_keys_simd(const f16* const* rows, int count, int at, const KeyTile& tile) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d)), width = panel_width();
  const int dim = tile.head_dim;
  const auto at_most = [&](const f16* from, int n) HWY_ATTR {
    return n >= lanes ? load(d, from) : load_part(d, from, static_cast<std::size_t>(n));
  };
  HWY_ALIGN float wide[kPackedKeys * kMostDim + HWY_MAX_BYTES / sizeof(float)];
  for (int first = 0; first < count; first += width) {
    const int here = std::min(width, count - first);
    for (int row = 0; row < here; ++row) {
      for (int i = 0; i < dim; i += lanes) hn::StoreU(at_most(rows[first + row] + i, dim - i), d, wide + row * dim + i);
    }
    const auto key = [&](int i) HWY_ATTR { return static_cast<const float*>(wide + i * dim); };
    lay_down(here, dim, key, tile.keys + static_cast<std::size_t>(at + first) * dim, static_cast<std::size_t>(width));
    if (tile.values == nullptr) continue;
    for (int i = 0; i < dim; i += width) {
      float* const panel = tile.values + (static_cast<std::size_t>(i) / width * kTileKeys + at + first) * width;
      for (int row = 0; row < width; ++row) {
        for (int j = 0; j < width; j += lanes) {
          const bool there = row < here && i + j < dim;
          hn::Store(there ? at_most(rows[first + row] + dim + i + j, dim - i - j) : hn::Zero(d), d,
                    panel + row * width + j);
        }
      }
    }
  }
}

void score_tile_simd(const KeyTile& tile, int n, const float* q, int rows, float* scores) {
  for (int row = 0; row < rows; row += kBlockRows * kBlocks) {
    const int blocks = std::min(kBlocks, (rows - row + kBlockRows - 1) / kBlockRows);
    score_rows(tile, 0, n, q + static_cast<std::size_t>(row) * tile.head_dim, blocks,
               scores + static_cast<std::size_t>(row) * kTileKeys);
  }
}

void attend_tile_simd(const KeyTile& tile, int n, std::int64_t begin, std::int64_t end, const TileQueries& queries) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d)), width = panel_width();
  const int dim = tile.head_dim;
  const std::size_t stride = static_cast<std::size_t>(weighted_stride(dim));
  float* const scores = queries.scores;
  const auto bound = [&](std::int64_t of_first, int row) {
    return static_cast<int>(std::clamp<std::int64_t>(of_first + row / queries.group, 0, n));
  };
  for (int row = 0; row < queries.rows; row += kBlockRows * kBlocks) {
    const int count = std::min(kBlockRows * kBlocks, queries.rows - row);
    const int blocks = (count + kBlockRows - 1) / kBlockRows;
    // Panels that nobody among these rows sees are left out.
    const int from = bound(begin, row) / width * width;
    const int to = (bound(end, row + count - 1) + width - 1) / width * width;
    if (from >= to) continue;
    score_rows(tile, from, to, queries.q + static_cast<std::size_t>(row) * dim, blocks, scores);
    for (int i = 0; i < count; ++i) {
      float* const s = scores + i * kTileKeys;
      const int first = bound(begin, row + i), last = std::max(first, bound(end, row + i));
      if (first == last) {
        std::fill(s + from, s + to, 0.0f);
        continue;
      }
      float& max = queries.max[row + i];
      float& sum = queries.sum[row + i];
      const bool whole = first % lanes == 0 && last % lanes == 0;
      const float keep =
          whole ? softmax_step<true>(d, s, first, last, max, sum) : softmax_step(d, s, first, last, max, sum);
      std::fill(s + from, s + first / lanes * lanes, 0.0f);
      std::fill(s + (last + lanes - 1) / lanes * lanes, s + to, 0.0f);
      shrink(queries.weighted + (row + i) * stride, dim, keep);
    }
    for (int column = 0; column < dim; column += width) {
      const float* const values = tile.values + static_cast<std::size_t>(column / width * kTileKeys + from) * width;
      for (int block = 0; block < blocks; ++block) {
        multiply_panel<Sum::goes_on>(BlockRows(), scores + block * kBlockRows * kTileKeys + from, kTileKeys, values,
                                     width, to - from, queries.weighted + (row + block * kBlockRows) * stride + column,
                                     stride);
      }
    }
  }
}

void softmax_blocks_simd(const BlockScores& scores) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int row = 0; row < scores.rows; ++row) {
    float* const s = scores.s + static_cast<std::int64_t>(row) * scores.stride;
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    softmax_step<true>(d, s, 0, scores.columns, max, sum);
    scores.max[row * scores.pitch] = max;
    float* const to = scores.sum + row * scores.pitch * (scores.stride / scores.block);
    for (int block = 0; block * scores.block < scores.columns; ++block) {
      auto total = hn::Zero(d);
      for (int i = 0; i < scores.block; i += lanes) total = hn::Add(total, hn::LoadU(d, s + block * scores.block + i));
      to[block] = hn::GetLane(hn::SumOfLanes(d, total));
    }
  }
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(pack_keys_simd);
HWY_EXPORT(score_tile_simd);
HWY_EXPORT(attend_tile_simd);
HWY_EXPORT(softmax_blocks_simd);

void pack_keys(const f16* const* rows, int count, int at, const KeyTile& tile) {
  HWY_DYNAMIC_DISPATCH(pack_keys_simd)(rows, count, at, tile);
}
void score_tile(const KeyTile& tile, int n, const float* q, int rows, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_tile_simd)(tile, n, q, rows, scores);
}
void attend_tile(const KeyTile& tile, int n, std::int64_t begin, std::int64_t end, const TileQueries& queries) {
  HWY_DYNAMIC_DISPATCH(attend_tile_simd)(tile, n, begin, end, queries);
}
void softmax_blocks(const BlockScores& scores) {
  HWY_DYNAMIC_DISPATCH(softmax_blocks_simd)(scores);
}

}  // namespace hayloft::gpu
#endif
