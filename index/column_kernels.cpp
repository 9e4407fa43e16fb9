// Vectors of unknown length cannot be kept in arrays.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/column_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "index/column_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that whole vectors fit the shortest block.
using D = hn::CappedTag<float, 16>;
using Vec = hn::Vec<D>;
using Half = hwy::float16_t;

constexpr int lane_count = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
// Vectors of tokens that share one broadcast weight: four columns of them, their sums and the weight stay in registers.
constexpr int unroll = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
constexpr int columns_per_pass = 4;

// Adds `count` columns to the scores of every query head, for `vectors` vectors of tokens from t on. A pass over the
// first columns starts the sums.
template <int count, int vectors, bool first>
HWY_INLINE void add_columns(const Half* const* columns, const float* weights, int rank, int heads, int t, float* scores,
                            int stride) {
  const D d;
  const hn::Rebind<Half, D> half;
  Vec x[count][vectors];
  for (int c = 0; c < count; ++c) {
    for (int v = 0; v < vectors; ++v) {
      x[c][v] = hn::PromoteTo(d, hn::LoadU(half, columns[c] + t + v * lane_count));
    }
  }
  for (int h = 0; h < heads; ++h) {
    float* HWY_RESTRICT row = scores + static_cast<std::ptrdiff_t>(h) * stride + t;
    const float* HWY_RESTRICT weight = weights + static_cast<std::ptrdiff_t>(h) * rank;
    Vec sum[vectors];
    const Vec w0 = hn::Set(d, weight[0]);
    for (int v = 0; v < vectors; ++v) {
      sum[v] = first ? hn::Mul(x[0][v], w0) : hn::MulAdd(x[0][v], w0, hn::Load(d, row + v * lane_count));
    }
    for (int c = 1; c < count; ++c) {
      const Vec w = hn::Set(d, weight[c]);
      for (int v = 0; v < vectors; ++v) sum[v] = hn::MulAdd(x[c][v], w, sum[v]);
    }
    for (int v = 0; v < vectors; ++v) hn::Store(sum[v], d, row + v * lane_count);
  }
}

// One pass over up to four columns; `ahead` are the columns of the pass after this one.
template <int count, bool first>
HWY_INLINE void column_pass(const Half* const* columns, const Half* const* ahead, int ahead_count, const float* weights,
                            int rank, int heads, int tokens, float* scores, int stride) {
  int t = 0;
  for (; t + subtile_tokens <= tokens; t += subtile_tokens) {
    for (int c = 0; c < ahead_count; ++c) {
      hwy::Prefetch(ahead[c] + t);
      hwy::Prefetch(ahead[c] + t + subtile_tokens / 2);
    }
    for (int u = 0; u < subtile_tokens; u += unroll * lane_count) {
      add_columns<count, unroll, first>(columns, weights, rank, heads, t + u, scores, stride);
    }
  }
  for (; t < tokens; t += lane_count) {
    add_columns<count, 1, first>(columns, weights, rank, heads, t, scores, stride);
  }
}

template <bool first>
HWY_INLINE void column_pass(int count, const Half* const* columns, const Half* const* ahead, int ahead_count,
                            const float* weights, int rank, int heads, int tokens, float* scores, int stride) {
  switch (count) {
    case 1:
      return column_pass<1, first>(columns, ahead, ahead_count, weights, rank, heads, tokens, scores, stride);
    case 2:
      return column_pass<2, first>(columns, ahead, ahead_count, weights, rank, heads, tokens, scores, stride);
    case 3:
      return column_pass<3, first>(columns, ahead, ahead_count, weights, rank, heads, tokens, scores, stride);
    default:
      return column_pass<4, first>(columns, ahead, ahead_count, weights, rank, heads, tokens, scores, stride);
  }
}

// Pointers to up to four columns of a run, from the j-th chosen component on.
HWY_INLINE int gather_columns(const HeadQuery& query, const ColumnRun& run, int j, const Half** columns) {
  if (run.first == nullptr) return 0;
  const int count = std::min(columns_per_pass, query.rank - j);
  for (int c = 0; c < count; ++c) {
    columns[c] = reinterpret_cast<const Half*>(run.first + query.components[j + c] * run.column_bytes);
  }
  return count;
}

void score_run(const HeadQuery& query, const ColumnRun& run, const ColumnRun& next, int tokens, float* scores,
               int stride) {
  const Half* columns[columns_per_pass];
  const Half* ahead[columns_per_pass];
  int count = gather_columns(query, run, 0, columns);
  for (int j = 0; j < query.rank; j += columns_per_pass) {
    const bool last = j + columns_per_pass >= query.rank;
    const int ahead_count =
        last ? gather_columns(query, next, 0, ahead) : gather_columns(query, run, j + columns_per_pass, ahead);
    if (j == 0) {
      column_pass<true>(count, columns, ahead, ahead_count, query.weights, query.rank, query.heads, tokens, scores,
                        stride);
    } else {
      column_pass<false>(count, columns, ahead, ahead_count, query.weights + j, query.rank, query.heads, tokens, scores,
                         stride);
    }
    std::copy(ahead, ahead + ahead_count, columns);
    count = ahead_count;
  }
}

void prefetch_run(const HeadQuery& query, const ColumnRun& run, int tokens) {
  for (int j = 0; j < query.rank; ++j) {
    const auto* column = reinterpret_cast<const Half*>(run.first + query.components[j] * run.column_bytes);
    for (int t = 0; t < tokens; t += subtile_tokens / 2) hwy::Prefetch(column + t);
  }
}

HWY_INLINE Vec subtile_maximum(const float* scores) {
  const D d;
  Vec most = hn::Load(d, scores);
  for (int t = lane_count; t < subtile_tokens; t += lane_count) most = hn::Max(most, hn::Load(d, scores + t));
  return most;
}

float subtile_maxima(const float* scores, int n, float* maxima) {
  const D d;
  Vec all = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int t = 0; t < n; t += subtile_tokens) {
    const Vec most = subtile_maximum(scores + t);
    maxima[t / subtile_tokens] = hn::GetLane(hn::MaxOfLanes(d, most));
    all = hn::Max(all, most);
  }
  return hn::GetLane(hn::MaxOfLanes(d, all));
}

// e^x = 2^n 2^f with n = round(x log2 e); 2^f on [-1/2, 1/2] by the polynomial of degree 5 that has the least relative
// error (9.2e-8) among those with 2^0 = 1 exactly; 1.7e-7 after rounding. Adding `shift` rounds to an integer and
// leaves n + 127 in the low bits, which become the exponent of 2^n.
HWY_INLINE Vec exp_nonpositive(D d, Vec x) {
  const hn::Rebind<std::int32_t, D> integers;
  const Vec shift = hn::Set(d, 0x1.8p23f + 127.0f);
  const Vec log2e = hn::Set(d, 0x1.715476p0f);
  x = hn::Max(hn::Set(d, -87.0f), x);  // in this order x86 keeps a NaN
  const Vec shifted = hn::MulAdd(x, log2e, shift);
  const Vec f = hn::MulSub(x, log2e, hn::Sub(shifted, shift));
  const Vec power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(integers, shifted)));
  Vec p = hn::MulAdd(hn::Set(d, 0x1.5bba14p-10f), f, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::Mul(p, power);
}

void group_scores(GroupScore kind, const float* scores, int stride, int heads, int n, const float* reference,
                  float* out) {
  const D d;
  for (int t = 0; t < n; t += lane_count) {
    Vec sum = hn::Load(d, scores + t);
    if (kind == GroupScore::softmax) sum = exp_nonpositive(d, hn::Sub(sum, hn::Set(d, reference[0])));
    for (int h = 1; h < heads; ++h) {
      Vec s = hn::Load(d, scores + static_cast<std::ptrdiff_t>(h) * stride + t);
      if (kind == GroupScore::softmax) s = exp_nonpositive(d, hn::Sub(s, hn::Set(d, reference[h])));
      sum = hn::Add(sum, s);
    }
    hn::Store(sum, d, out + t);
  }
}

void exp_sums(const float* scores, int stride, int heads, int n, const float* reference, float* scratch, float* sums,
              float* group_maxima) {
  const D d;
  for (int h = 0; h < heads; ++h) hn::Store(hn::Zero(d), d, scratch + h * lane_count);
  for (int t = 0; t < n; t += subtile_tokens) {
    Vec most = hn::Zero(d);
    for (int u = t; u < t + subtile_tokens; u += unroll * lane_count) {
      Vec group[unroll];
      for (int v = 0; v < unroll; ++v) group[v] = hn::Zero(d);
      for (int h = 0; h < heads; ++h) {
        const float* row = scores + static_cast<std::ptrdiff_t>(h) * stride + u;
        const Vec r = hn::Set(d, reference[h]);
        Vec e[unroll];
        for (int v = 0; v < unroll; ++v) {
          e[v] = exp_nonpositive(d, hn::Sub(hn::Load(d, row + v * lane_count), r));
          group[v] = hn::Add(group[v], e[v]);
        }
        Vec sum = hn::Add(e[0], e[1]);
        if constexpr (unroll == 4) sum = hn::Add(sum, hn::Add(e[2], e[3]));
        hn::Store(hn::Add(hn::Load(d, scratch + h * lane_count), sum), d, scratch + h * lane_count);
      }
      for (int v = 0; v < unroll; ++v) most = hn::Max(most, group[v]);
    }
    if (group_maxima != nullptr) group_maxima[t / subtile_tokens] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (int h = 0; h < heads; ++h) sums[h] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, scratch + h * lane_count)));
}

void softmax_bounds(const float* maxima, std::int64_t stride, int heads, std::int64_t n, const float* offset,
                    float* lower, float* upper) {
  const D d;
  for (std::int64_t i = 0; i < n; i += lane_count) {
    Vec most = hn::Zero(d);
    Vec sum = hn::Zero(d);
    for (int h = 0; h < heads; ++h) {
      const Vec e = exp_nonpositive(d, hn::Sub(hn::Load(d, maxima + h * stride + i), hn::Set(d, offset[h])));
      most = hn::Max(most, e);
      sum = hn::Add(sum, e);
    }
    hn::Store(most, d, lower + i);
    hn::Store(sum, d, upper + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::index
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(score_run);
HWY_EXPORT(prefetch_run);
HWY_EXPORT(subtile_maxima);
HWY_EXPORT(group_scores);
HWY_EXPORT(exp_sums);
HWY_EXPORT(softmax_bounds);

void score_run(const HeadQuery& query, const ColumnRun& run, const ColumnRun& next, int tokens, float* scores,
               int stride) {
  HWY_DYNAMIC_DISPATCH(score_run)(query, run, next, tokens, scores, stride);
}

void prefetch_run(const HeadQuery& query, const ColumnRun& run, int tokens) {
  HWY_DYNAMIC_DISPATCH(prefetch_run)(query, run, tokens);
}

float subtile_maxima(const float* scores, int n, float* maxima) {
  return HWY_DYNAMIC_DISPATCH(subtile_maxima)(scores, n, maxima);
}

void group_scores(GroupScore kind, const float* scores, int stride, int heads, int n, const float* reference,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(group_scores)(kind, scores, stride, heads, n, reference, out);
}

void exp_sums(const float* scores, int stride, int heads, int n, const float* reference, float* scratch, float* sums,
              float* group_maxima) {
  HWY_DYNAMIC_DISPATCH(exp_sums)(scores, stride, heads, n, reference, scratch, sums, group_maxima);
}

void softmax_bounds(const float* maxima, std::int64_t stride, int heads, std::int64_t n, const float* offset,
                    float* lower, float* upper) {
  HWY_DYNAMIC_DISPATCH(softmax_bounds)(maxima, stride, heads, n, offset, lower, upper);
}

}  // namespace hayloft::index
#endif
