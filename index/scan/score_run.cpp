// Vectors of unknown length cannot be kept in arrays.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/scan/score_run.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/columns/column_keys-inl.h"
#include "index/scan/columns/lookahead.h"
#include "index/scan/columns/tile_notes-inl.h"
#include "index/scan/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index {
namespace HWY_NAMESPACE {

// Vectors of tokens that share one broadcast weight: as many as the registers hold.
constexpr int unroll = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// Adds `count` columns to the scores of every query head, for `vectors` vectors of tokens from t on. The first pass
// starts the sums.
template <ColumnFormat format, int count, int vectors, bool first>
HWY_INLINE void add_columns(const Keys<format>* columns, int t, const float* HWY_RESTRICT weights, int weight_stride,
                            int heads, float* HWY_RESTRICT scores, std::ptrdiff_t stride) {
  const D d;
  Vec x[count][vectors];
  for (int c = 0; c < count; ++c) {
    for (int v = 0; v < vectors; ++v) x[c][v] = columns[c].at(t + v * lane_count);
  }
  scores += t;
  for (int h = 0; h < heads; ++h, weights += weight_stride, scores += stride) {
    Vec sum[vectors];
    const Vec w0 = hn::Set(d, weights[0]);
    for (int v = 0; v < vectors; ++v) {
      sum[v] = first ? hn::Mul(x[0][v], w0) : hn::MulAdd(x[0][v], w0, hn::Load(d, scores + v * lane_count));
    }
    for (int c = 1; c < count; ++c) {
      const Vec w = hn::Set(d, weights[c]);
      for (int v = 0; v < vectors; ++v) sum[v] = hn::MulAdd(x[c][v], w, sum[v]);
    }
    for (int v = 0; v < vectors; ++v) hn::Store(sum[v], d, scores + v * lane_count);
  }
}

// One pass over a run.
struct RunPass {
  const HeadQuery& query;
  const std::byte* columns[columns_per_pass];
  const std::byte* scales[columns_per_pass];
  const float* weights;  // of the first column, [heads][query.weight_stride]
  int tokens;
  float* scores;
  std::ptrdiff_t stride;
  const TileNotes* notes;  // null before the last pass
  Lookahead& lookahead;
  int pass_credit;
  int note_credit;
};

template <ColumnFormat format, int count, bool first>
HWY_NOINLINE void run_pass(const RunPass& shared) {
  const RunPass pass = shared;  // a copy that no store can change
  const int stride = pass.query.weight_stride;
  const int heads = pass.query.heads;
  for (int t = 0; t < pass.tokens; t += quant_group_tokens) {
    pass.lookahead.advance(pass.pass_credit);
    Keys<format> columns[count];
    for (int c = 0; c < count; ++c) {
      columns[c].open(pass.columns[c] + column_bytes(format, t), pass.scales[c], t / quant_group_tokens);
    }
    float* scores = pass.scores + t;
    if (pass.tokens - t >= quant_group_tokens) {
      for (int u = 0; u < quant_group_tokens; u += unroll * lane_count) {
        add_columns<format, count, unroll, first>(columns, u, pass.weights, stride, heads, scores, pass.stride);
      }
    } else {
      const int end = (pass.tokens - t + 15) / 16 * 16;
      for (int u = 0; u < end; u += lane_count) {
        add_columns<format, count, 1, first>(columns, u, pass.weights, stride, heads, scores, pass.stride);
      }
    }
    if (pass.notes == nullptr) continue;
    for (int h = 0; h < heads && pass.tokens - t < quant_group_tokens; ++h) {
      std::fill(scores + h * pass.stride + (pass.tokens - t), scores + h * pass.stride + quant_group_tokens, -infinity);
    }
    pass.lookahead.advance(pass.note_credit);
    note_quant_group(scores, static_cast<int>(pass.stride), heads, t / quant_group_tokens, *pass.notes);
  }
}

template <ColumnFormat format, bool first>
HWY_INLINE void run_pass(int count, const RunPass& pass) {
  switch (count) {
    case 1:
      return run_pass<format, 1, first>(pass);
    case 2:
      return run_pass<format, 2, first>(pass);
    case 3:
      return run_pass<format, 3, first>(pass);
    default:
      return run_pass<format, 4, first>(pass);
  }
}

template <ColumnFormat format>
void score_format(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores,
                  int stride, const TileNotes* notes) {
  // The lookahead keeps the pace of the computation: what a pass over a quantisation group costs, and what its notes
  // do, in instructions, decides how much is asked for meanwhile. So when the last notes are taken it is a share of a
  // run ahead of the reads to come, and some passes more.
  const int passes = (query.rank + columns_per_pass - 1) / columns_per_pass;
  const int pass_cost = 16 * query.heads + Keys<format>::load_cost;
  const int note_cost = notes == nullptr ? 0 : (notes->references == nullptr ? 12 : 76) * query.heads;
  const int pass_credit = 256 * passes * pass_cost / (passes * pass_cost + note_cost);
  const int note_credit = 256 * passes - passes * pass_credit;
  const int lead = std::min(passes, (note_credit + 255) / 256 + 1);
  Lookahead lookahead(query, run, next, tokens, lead);

  RunPass pass{query, {}, {}, query.weights, tokens, scores, stride, nullptr, lookahead, pass_credit, note_credit};
  for (int j = 0; j < query.rank; j += columns_per_pass) {
    const int count = std::min(columns_per_pass, query.rank - j);
    for (int c = 0; c < count; ++c) {
      pass.columns[c] = run.columns + query.offsets[j + c];
      if constexpr (is_scaled(format)) pass.scales[c] = run.scales + query.scale_offsets[j + c];
    }
    pass.weights = query.weights + j;
    pass.notes = j + count == query.rank ? notes : nullptr;
    if (j == 0) {
      run_pass<format, true>(count, pass);
    } else {
      run_pass<format, false>(count, pass);
    }
  }
}

void score_run(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores, int stride,
               const TileNotes* notes) {
  with_column_format(query.format, [&](auto format) {
    if constexpr (!in_planes(format)) score_format<format>(query, run, next, tokens, scores, stride, notes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::index
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(score_run);

void score_run(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores, int stride,
               const TileNotes* notes) {
  HWY_DYNAMIC_DISPATCH(score_run)(query, run, next, tokens, scores, stride, notes);
}

void prefetch_run(const HeadQuery& query, const TokenRun& run, int tokens) {
  const int bytes = column_bytes(query.format, tokens);
  for (int j = 0; j < query.rank; ++j) {
    for (int plane = 0; plane < (query.planes == nullptr ? 1 : query.planes[j]); ++plane) {
      const std::byte* const from = run.columns + query.offsets[j] + plane * query.plane_bytes;
      for (int at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
    }
    if (run.scales != nullptr) __builtin_prefetch(run.scales + query.scale_offsets[j], 0, 2);
  }
}

}  // namespace hayloft::index
#endif
