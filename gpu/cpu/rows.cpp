#include "gpu/cpu/rows.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gpu/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/rows.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Rows whose scores are held at once. A tile's rows stay in the first-level cache between the pass over K and the one
// over V: 32 rows of d = 128 are 16 KiB.
constexpr int kTile = kTileRows;
constexpr int kMaxQueries = 64;  // query heads a tile's score buffer has room for; larger groups come in slices

// Asks for rows to be brought into the second-level cache, line by line in their order and a little at a time: all at
// once they would fill the core's few slots for pending lines and stall it. The second level, because it keeps many
// more lines pending than the first.
class RowPrefetch {
 public:
  RowPrefetch(const f16* const* rows, int n, int head_dim)
      : row_(rows), end_(rows + n), row_bytes_(sizeof(f16) * 2 * static_cast<std::size_t>(head_dim)) {}

  HWY_INLINE void lines(int count) {
    for (int i = 0; i < count && row_ != end_; ++i) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(*row_) + offset_, 0, 2);
      offset_ += 64;
      if (offset_ >= row_bytes_) {
        offset_ = 0;
        ++row_;
      }
    }
  }

 private:
  const f16* const* row_;
  const f16* const* end_;
  std::size_t offset_ = 0;
  std::size_t row_bytes_;
};

// scores[query][row] of up to kTile rows.
template <class Prefetch>
HWY_INLINE void score_tile(F32 d, const f16* const* rows, int n, const QueryGroup& group, float* scores,
                           Prefetch& prefetch) {
  for (int row = 0; row < n; row += 4) {
    // The last four may be fewer: the last row stands in, and its surplus scores are never read.
    const f16* four[4];
    for (int i = 0; i < 4; ++i) four[i] = rows[std::min(row + i, n - 1)];
    dot_four(d, four, group.q, group.queries, static_cast<std::size_t>(group.stride),
             static_cast<std::size_t>(group.head_dim), scores + row, kTile, prefetch);
  }
}

// Replaces scores [begin, end) by exp(s - max) under the running maximum, the other lanes of the vectors they lie in by
// zero, and returns the factor by which everything summed so far must shrink.
HWY_INLINE float softmax_step(F32 d, float* scores, int begin, int end, float& max, float& sum) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int from = begin / lanes * lanes;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto at = [&](int i) HWY_ATTR {
    auto s = hn::LoadU(d, scores + i);
    if (i + lanes > end) s = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(end - i)), s, lowest);
    if (i < begin) s = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(begin - i)), lowest, s);
    return s;
  };
  auto largest = lowest;
  for (int i = from; i < end; i += lanes) largest = hn::Max(largest, at(i));
  const float grown = std::max(max, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float keep = rescale(max, grown);
  auto total = hn::Zero(d);
  for (int i = from; i < end; i += lanes) {
    const auto p = index::HWY_NAMESPACE::exp_accurate(d, hn::Sub(at(i), hn::Set(d, grown)));
    total = hn::Add(total, p);
    hn::StoreU(p, d, scores + i);
  }
  max = grown;
  sum = hn::GetLane(hn::MulAdd(hn::Set(d, sum), hn::Set(d, keep), hn::SumOfLanes(d, total)));
  return keep;
}

HWY_INLINE void shrink(float* values, int n, float factor) {
  if (factor == 1) return;
  for (int i = 0; i < n; ++i) values[i] *= factor;
}

// weighted[query][component] += sum over rows of p[query][row] * V[row][component], for Q query heads and a strip
// of up to `Vectors` vectors of components.
template <int Q, int Vectors, class Prefetch>
HWY_INLINE void weigh_strip(F32 d, const f16* const* rows, int n, const float* p, std::size_t offset, std::size_t part,
                            float* weighted, std::size_t stride, Prefetch& prefetch) {
  const std::size_t lanes = hn::Lanes(d);
  F32Vec sum[Q][Vectors];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < Vectors; ++v) sum[q][v] = hn::LoadU(d, weighted + q * stride + v * lanes);
  for (int row = 0; row < n; ++row) {
    if (HWY_MAX_BYTES >= 64) prefetch.lines(1);  // smaller vectors make more steps over K, which then prefetch it all
    F32Vec value[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      const f16* from = rows[row] + offset + v * lanes;
      value[v] = part == lanes ? load(d, from) : load_part(d, from, part);
    }
    for (int q = 0; q < Q; ++q) {
      const auto weight = hn::Set(d, p[q * kTile + row]);
      for (int v = 0; v < Vectors; ++v) sum[q][v] = hn::MulAdd(weight, value[v], sum[q][v]);
    }
  }
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < Vectors; ++v) hn::StoreU(sum[q][v], d, weighted + q * stride + v * lanes);
}

template <int Q, class Prefetch>
HWY_INLINE void weigh_values(F32 d, const f16* const* rows, int n, const float* p, std::size_t head_dim,
                             float* weighted, std::size_t stride, Prefetch& prefetch) {
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= head_dim; i += 4 * lanes) {
    weigh_strip<Q, 4>(d, rows, n, p, head_dim + i, lanes, weighted + i, stride, prefetch);
  }
  for (; i + 2 * lanes <= head_dim; i += 2 * lanes) {
    weigh_strip<Q, 2>(d, rows, n, p, head_dim + i, lanes, weighted + i, stride, prefetch);
  }
  for (; i < head_dim; i += lanes) {
    weigh_strip<Q, 1>(d, rows, n, p, head_dim + i, std::min(lanes, head_dim - i), weighted + i, stride, prefetch);
  }
}

void attend_slice(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  const F32 d;
  HWY_ALIGN float scores[kMaxQueries * kTile];
  const std::size_t stride = static_cast<std::size_t>(group.stride);
  const std::size_t head_dim = static_cast<std::size_t>(group.head_dim);
  for (std::int64_t done = 0; done < n; done += kTile) {
    const int here = static_cast<int>(std::min<std::int64_t>(kTile, n - done));
    const int ahead = static_cast<int>(std::min<std::int64_t>(kTile, n - done - here));
    const f16* const* tile = rows + done;
    RowPrefetch next(tile + here, ahead, group.head_dim);
    score_tile(d, tile, here, group, scores, next);
    for (int q = 0; q < group.queries; ++q) {
      const float keep = softmax_step(d, scores + q * kTile, 0, here, group.max[q], group.sum[q]);
      shrink(group.weighted + q * stride, group.stride, keep);
    }
    for_each_run<true>(group.queries, [&](auto run, int q) HWY_ATTR {
      weigh_values<run()>(d, tile, here, scores + q * kTile, head_dim, group.weighted + q * stride, stride, next);
    });
  }
}

void sum_slice(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  const F32 d;
  HWY_ALIGN float scores[kMaxQueries * kTile];
  for (std::int64_t done = 0; done < n; done += kTile) {
    const int here = static_cast<int>(std::min<std::int64_t>(kTile, n - done));
    NoPrefetch none;
    score_tile(d, rows + done, here, group, scores, none);
    for (int q = 0; q < group.queries; ++q) softmax_step(d, scores + q * kTile, 0, here, group.max[q], group.sum[q]);
  }
}

// Runs `slice` over at most kMaxQueries query heads at a time.
template <class Slice>
void in_slices(const QueryGroup& group, const Slice& slice) {
  for (int q = 0; q < group.queries; q += kMaxQueries) {
    QueryGroup part = group;
    part.q += q * group.stride;
    part.queries = std::min(kMaxQueries, group.queries - q);
    if (part.weighted) part.weighted += q * group.stride;
    part.max += q;
    part.sum += q;
    slice(part);
  }
}

void attend_rows_simd(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  in_slices(group, [&](const QueryGroup& part) HWY_ATTR { attend_slice(rows, n, part); });
}

void sum_rows_simd(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  in_slices(group, [&](const QueryGroup& part) HWY_ATTR { sum_slice(rows, n, part); });
}

void add_values_simd(const f16* const* rows, std::int64_t n, int head_dim, double* total) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  HWY_ALIGN float eight[HWY_MAX_BYTES / sizeof(float)];
  for (std::int64_t done = 0; done < n; done += 8) {
    const std::int64_t end = std::min(done + 8, n);
    for (int i = 0; i < head_dim; i += lanes) {
      const int part = std::min(lanes, head_dim - i);
      auto sum = hn::Zero(d);
      for (std::int64_t row = done; row < end; ++row) {
        const f16* from = rows[row] + head_dim + i;
        sum = hn::Add(sum, part == lanes ? load(d, from) : load_part(d, from, static_cast<std::size_t>(part)));
      }
      hn::Store(sum, d, eight);
      for (int lane = 0; lane < part; ++lane) total[i + lane] += eight[lane];
    }
  }
}

void softmax_tile_simd(const ScoreTile& tile) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int m = 0; m < tile.rows; ++m) {
    float* s = tile.s + static_cast<std::int64_t>(m) * tile.stride;
    const std::int64_t token = m / tile.queries;
    const int begin = static_cast<int>(std::clamp<std::int64_t>(tile.begin + token, 0, tile.columns));
    const int end = static_cast<int>(std::clamp<std::int64_t>(tile.end + token, begin, tile.columns));
    if (begin == end) {
      std::fill_n(s, tile.stride, 0.0f);
      continue;
    }
    const float keep = softmax_step(d, s, begin, end, tile.max[m], tile.sum[m]);
    std::fill(s, s + begin / lanes * lanes, 0.0f);
    std::fill(s + (end + lanes - 1) / lanes * lanes, s + tile.stride, 0.0f);
    shrink(tile.weighted + static_cast<std::int64_t>(m) * tile.head_dim, tile.head_dim, keep);
  }
}

void softmax_blocks_simd(const BlockScores& scores) {
  const F32 d;
  for (int row = 0; row < scores.rows; ++row) {
    for (int block = 0; block * scores.block < scores.columns; ++block) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      softmax_step(d, scores.s + static_cast<std::int64_t>(row) * scores.stride + block * scores.block, 0, scores.block,
                   max, sum);
      scores.max[row * scores.pitch + block] = max;
      scores.sum[row * scores.pitch + block] = sum;
    }
  }
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(attend_rows_simd);
HWY_EXPORT(sum_rows_simd);
HWY_EXPORT(add_values_simd);
HWY_EXPORT(softmax_tile_simd);
HWY_EXPORT(softmax_blocks_simd);

void attend_rows(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  HWY_DYNAMIC_DISPATCH(attend_rows_simd)(rows, n, group);
}
void sum_rows(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  HWY_DYNAMIC_DISPATCH(sum_rows_simd)(rows, n, group);
}
void add_values(const f16* const* rows, std::int64_t n, int head_dim, double* total) {
  HWY_DYNAMIC_DISPATCH(add_values_simd)(rows, n, head_dim, total);
}
void softmax_tile(const ScoreTile& tile) {
  HWY_DYNAMIC_DISPATCH(softmax_tile_simd)(tile);
}

void softmax_blocks(const BlockScores& scores) {
  HWY_DYNAMIC_DISPATCH(softmax_blocks_simd)(scores);
}

}  // namespace hayloft::gpu
#endif
