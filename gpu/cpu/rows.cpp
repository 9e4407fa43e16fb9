#include "gpu/cpu/rows.h"

#include <algorithm>
#include <cstddef>

#include "gpu/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/rows.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Rows whose scores are held at once. A tile's rows stay in the first-level cache between the pass over K and the one
// over V: 32 rows of d = 128 are 16 KiB.
constexpr int kTile = kTileRows;
constexpr int kMaxQueries = 64;  // query heads a tile's score buffer has room for; larger groups come in slices

// Asks for the rows that come a tile later, line by line in their order and a little at a time: all at once they would
// fill the core's few slots for pending lines and stall it. A tile's passes over K and over V ask for half of a tile
// each, so that memory never rests; a pass over K or V alone asks for that. They go to the second-level cache, since
// two tiles fill the first.
class RowPrefetch {
 public:
  // Elements [first, last) of each row are read.
  RowPrefetch(const f16* const* rows, std::int64_t n, int first, int last)
      : row_(rows),
        stop_(rows),
        end_(rows + n),
        offset_(sizeof(f16) * static_cast<std::size_t>(first)),
        first_(offset_),
        last_(sizeof(f16) * static_cast<std::size_t>(last)) {}

  // The rows from `now` on come next: those a tile behind them are asked for, and none two tiles behind them, where the
  // steps are more than the lines.
  HWY_INLINE void keep_pace(const f16* const* now) {
    if (row_ - now < kTile) {
      row_ = end_ - now < kTile ? end_ : now + kTile;
      offset_ = first_;
    }
    stop_ = end_ - now < 2 * kTile ? end_ : now + 2 * kTile;
  }

  // dot_four() and weigh_strip() call it at each step: twice d / lanes times for four rows, which have d / 4 lines;
  // add_values() twice for each vector of eight rows.
  HWY_INLINE void step() {
    for (int i = 0; i < kLines && row_ < stop_; ++i) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(*row_) + offset_, 0, 2);
      offset_ += 64;
      if (offset_ >= last_) {
        offset_ = first_;
        ++row_;
      }
    }
  }

 private:
  static constexpr int kLines = HWY_MAX_BYTES >= 64 ? 2 : 1;  // lanes / 8

  const f16* const* row_;
  const f16* const* stop_;
  const f16* const* end_;
  std::size_t offset_;  // bytes, as those below
  std::size_t first_;
  std::size_t last_;
};

// Calls body(run, first query head, prefetch) for runs of query heads that fit the registers. The first run prefetches.
// Each widens the rows again, which costs less than to write them down as f32.
template <class Prefetch, class Body>
HWY_INLINE void for_each_run_of(const QueryGroup& group, Prefetch& prefetch, const Body& body) {
  NoPrefetch none;
  for_each_run<true>(group.queries,
                     [&](auto run, int q) HWY_ATTR { q == 0 ? body(run, q, prefetch) : body(run, q, none); });
}

// Writes scores[query][row] of up to kTile rows, for Q query heads. It is a function of its own, as weigh_run() is, so
// that the sums stay in registers.
template <int Q, class Prefetch>
HWY_NOINLINE void score_run(const f16* const* rows, int count, const float* q, std::size_t stride, std::size_t head_dim,
                            float* scores, Prefetch& prefetch) {
  const F32 d;
  for (int row = 0; row < count; row += 4) {
    // The last four may be fewer: the last row stands in, and its surplus scores are never read.
    const f16* four[4];
    for (int i = 0; i < 4; ++i) four[i] = rows[std::min(row + i, count - 1)];
    dot_four<Q>(d, four, q, stride, head_dim, scores + row, kTile, prefetch);
  }
}

template <class Prefetch>
HWY_INLINE void score_tile(const f16* const* rows, int count, const QueryGroup& group, float* scores,
                           Prefetch& prefetch) {
  const std::size_t stride = static_cast<std::size_t>(group.stride);
  for_each_run_of(group, prefetch, [&](auto run, int q, auto& asked) HWY_ATTR {
    score_run<run()>(rows, count, group.q + q * stride, stride, static_cast<std::size_t>(group.head_dim),
                     scores + q * kTile, asked);
  });
}

// Does softmax_step() over the scores of a tile's rows, for one query head of the group.
HWY_INLINE float softmax_rows(F32 d, float* scores, int count, const QueryGroup& group, int q) {
  if (count == kTile) return softmax_step<true>(d, scores, 0, kTile, group.max[q], group.sum[q]);
  return softmax_step(d, scores, 0, count, group.max[q], group.sum[q]);
}

// weighted[query][component] += sum over rows of p[query][row] * V[row][component], for Q query heads and a strip
// of `Vectors` vectors of components from `i` on; of the one vector `part` where it is not whole.
template <int Q, int Vectors, bool Whole, class Prefetch>
HWY_INLINE void weigh_strip(F32 d, const f16* const* rows, int count, const float* p, std::size_t head_dim,
                            std::size_t i, float* weighted, std::size_t stride, Prefetch& prefetch) {
  const std::size_t lanes = hn::Lanes(d);
  F32Vec sum[Q][Vectors];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < Vectors; ++v) sum[q][v] = hn::LoadU(d, weighted + q * stride + i + v * lanes);
  for (int row = 0; row < count; ++row) {
    prefetch.step();
    F32Vec weight[Q];
    for (int q = 0; q < Q; ++q) weight[q] = hn::Set(d, p[q * kTile + row]);
    for (int v = 0; v < Vectors; ++v) {
      const f16* const from = rows[row] + head_dim + i + v * lanes;
      F32Vec value;
      if constexpr (Whole) {
        value = load(d, from);
      } else {
        value = load_part(d, from, head_dim - i);
      }
      for (int q = 0; q < Q; ++q) sum[q][v] = hn::MulAdd(weight[q], value, sum[q][v]);
    }
  }
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < Vectors; ++v) hn::StoreU(sum[q][v], d, weighted + q * stride + i + v * lanes);
}

template <int Q, class Prefetch>
HWY_NOINLINE void weigh_run(const f16* const* rows, int count, const float* p, std::size_t head_dim, float* weighted,
                            std::size_t stride, Prefetch& prefetch) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const auto strip = [&]<int Vectors, bool Whole>(std::size_t i) HAYLOFT_KERNEL_LAMBDA {
    weigh_strip<Q, Vectors, Whole>(d, rows, count, p, head_dim, i, weighted, stride, prefetch);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= head_dim; i += 4 * lanes) strip.template operator()<4, true>(i);
  for (; i + 2 * lanes <= head_dim; i += 2 * lanes) strip.template operator()<2, true>(i);
  for (; i + lanes <= head_dim; i += lanes) strip.template operator()<1, true>(i);
  if (i < head_dim) strip.template operator()<1, false>(i);
}

template <class Prefetch>
HWY_INLINE void weigh_values(const f16* const* rows, int count, const QueryGroup& group, const float* scores,
                             Prefetch& prefetch) {
  const std::size_t stride = static_cast<std::size_t>(group.stride);
  for_each_run_of(group, prefetch, [&](auto run, int q, auto& asked) HWY_ATTR {
    weigh_run<run()>(rows, count, scores + q * kTile, static_cast<std::size_t>(group.head_dim),
                     group.weighted + q * stride, stride, asked);
  });
}

void attend_slice(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  const F32 d;
  HWY_ALIGN float scores[kMaxQueries * kTile];
  const std::size_t stride = static_cast<std::size_t>(group.stride);
  RowPrefetch next(rows, n, 0, 2 * group.head_dim);
  for (std::int64_t done = 0; done < n; done += kTile) {
    const int here = static_cast<int>(std::min<std::int64_t>(kTile, n - done));
    const f16* const* tile = rows + done;
    next.keep_pace(tile);
    score_tile(tile, here, group, scores, next);
    for (int q = 0; q < group.queries; ++q) {
      shrink(group.weighted + q * stride, group.stride, softmax_rows(d, scores + q * kTile, here, group, q));
    }
    weigh_values(tile, here, group, scores, next);
  }
}

void sum_slice(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  const F32 d;
  HWY_ALIGN float scores[kMaxQueries * kTile];
  RowPrefetch next(rows, n, 0, group.head_dim);
  for (std::int64_t done = 0; done < n; done += kTile) {
    const int here = static_cast<int>(std::min<std::int64_t>(kTile, n - done));
    next.keep_pace(rows + done);
    score_tile(rows + done, here, group, scores, next);
    for (int q = 0; q < group.queries; ++q) softmax_rows(d, scores + q * kTile, here, group, q);
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
  RowPrefetch next(rows, n, head_dim, 2 * head_dim);
  for (std::int64_t done = 0; done < n; done += 8) {
    const std::int64_t end = std::min(done + 8, n);
    next.keep_pace(rows + done);
    for (int i = 0; i < head_dim; i += lanes) {
      const int part = std::min(lanes, head_dim - i);
      next.step();
      next.step();
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

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(attend_rows_simd);
HWY_EXPORT(sum_rows_simd);
HWY_EXPORT(add_values_simd);

void attend_rows(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  HWY_DYNAMIC_DISPATCH(attend_rows_simd)(rows, n, group);
}
void sum_rows(const f16* const* rows, std::int64_t n, const QueryGroup& group) {
  HWY_DYNAMIC_DISPATCH(sum_rows_simd)(rows, n, group);
}
void add_values(const f16* const* rows, std::int64_t n, int head_dim, double* total) {
  HWY_DYNAMIC_DISPATCH(add_values_simd)(rows, n, head_dim, total);
}
}  // namespace hayloft::gpu
#endif
