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

// True where what is due is asked for line by line between the multiplications. Columns of fewer bytes than f16 seldom
// owe anything, and then it is asked for at once.
template <ColumnFormat format>
constexpr bool asks_between() {
  return !is_scaled(format);
}

// So many query heads have sums over a quantisation group that fit the registers: then a pass has more columns, and
// sums are loaded and stored less often. Keys with a scale take more time and registers to make than that saves.
constexpr int heads_in_registers = lane_count * unroll == quant_group_tokens ? 4 : 0;

// Describes one pass over a run.
struct RunPass {
  const HeadQuery& query;
  const std::byte* columns[most_columns_per_pass];
  const std::byte* scales[most_columns_per_pass];
  int count;             // columns
  bool first;            // starts the sums
  const float* weights;  // of the first column, [heads][query.weight_stride]
  int tokens;
  float* scores;
  std::ptrdiff_t stride;
  const TileNotes* notes;  // null before the last pass
  Lookahead& lookahead;
  int column_credit;
  int note_credit;
};

// Adds `count` columns to the scores of every query head, for `vectors` vectors of tokens from t on. The first pass
// starts the sums. Meanwhile asks for a part of what is due.
template <ColumnFormat format, int count, int vectors, bool first>
HWY_INLINE void add_columns(const Keys<format>* columns, int t, const float* HWY_RESTRICT weights, int weight_stride,
                            int heads, float* HWY_RESTRICT scores, std::ptrdiff_t stride, Lookahead::Due due) {
  constexpr bool asks = asks_between<format>();
  constexpr bool by_head = vectors * lane_count == quant_group_tokens;
  const D d;
  Vec x[count][vectors];
  for (int c = 0; c < count; ++c) {
    for (int v = 0; v < vectors; ++v) x[c][v] = columns[c].at(t + v * lane_count);
  }
  if constexpr (asks && by_head) {
    for (int c = heads; c < columns_per_pass; ++c) due.ask(c);
  } else if (asks && t % 16 == 0) {
    due.ask(t / 16);
  }
  scores += t;
  for (int h = 0; h < heads; ++h, weights += weight_stride, scores += stride) {
    if constexpr (asks && by_head) due.ask(h % columns_per_pass);
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

template <ColumnFormat format, int count, bool first>
HWY_INLINE void add_few(const RunPass& pass, int t, Lookahead::Due due) {
  Keys<format> columns[count];
  for (int c = 0; c < count; ++c) {
    columns[c].open(pass.columns[c] + column_bytes(format, t), pass.scales[c], t / quant_group_tokens);
  }
  const int stride = pass.query.weight_stride, heads = pass.query.heads;
  float* const scores = pass.scores + t;
  if (pass.tokens - t >= quant_group_tokens) {
    for (int u = 0; u < quant_group_tokens; u += unroll * lane_count) {
      add_columns<format, count, unroll, first>(columns, u, pass.weights, stride, heads, scores, pass.stride, due);
    }
  } else {
    const int end = (pass.tokens - t + 15) / 16 * 16;
    for (int u = 0; u < end; u += lane_count) {
      add_columns<format, count, 1, first>(columns, u, pass.weights, stride, heads, scores, pass.stride, due);
    }
  }
}

// Adds all columns of a pass to the scores of `heads` query heads over a quantisation group. The sums stay in
// registers, for which g++ has to be told to unroll.
template <ColumnFormat format, int heads>
HWY_NOINLINE void add_many(const RunPass& pass, int t, Lookahead::Due due) {
  constexpr int vectors = unroll;
  const D d;
  const std::ptrdiff_t weight_stride = pass.query.weight_stride;
  const std::ptrdiff_t begin = column_bytes(format, t);
  const float* const weights = pass.weights;
  float* const scores = pass.scores + t;
  const int count = pass.count;
  Vec sum[heads][vectors];
  const auto load = [&](int c, Vec* x) HWY_ATTR {
    Keys<format> column;
    column.open(pass.columns[c] + begin, pass.scales[c], t / quant_group_tokens);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) x[v] = column.at(v * lane_count);
    due.ask(c);
  };
  int c = 0;
  if (pass.first) {
    Vec x[vectors];
    load(c++, x);
#pragma GCC unroll 4
    for (int h = 0; h < heads; ++h) {
      const Vec w = hn::Set(d, weights[h * weight_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[h][v] = hn::Mul(x[v], w);
    }
  } else {
#pragma GCC unroll 4
    for (int h = 0; h < heads; ++h) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[h][v] = hn::Load(d, scores + h * pass.stride + v * lane_count);
    }
  }
  for (; c < count; ++c) {
    Vec x[vectors];
    load(c, x);
#pragma GCC unroll 4
    for (int h = 0; h < heads; ++h) {
      const Vec w = hn::Set(d, weights[h * weight_stride + c]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[h][v] = hn::MulAdd(x[v], w, sum[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < heads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) hn::Store(sum[h][v], d, scores + h * pass.stride + v * lane_count);
  }
}

template <bool asks, class Add>
HWY_INLINE void run_pass(const RunPass& shared, const Add& add) {
  const RunPass pass = shared;  // a copy that no store can change
  const int heads = pass.query.heads;
  for (int t = 0; t < pass.tokens; t += quant_group_tokens) {
    const int credit = pass.count * pass.column_credit;
    if (!asks) pass.lookahead.advance(credit);
    add(pass, t, asks ? pass.lookahead.due(credit) : Lookahead::Due());
    if (pass.notes == nullptr) continue;
    float* const scores = pass.scores + t;
    for (int h = 0; h < heads && pass.tokens - t < quant_group_tokens; ++h) {
      std::fill(scores + h * pass.stride + (pass.tokens - t), scores + h * pass.stride + quant_group_tokens, -infinity);
    }
    pass.lookahead.advance(pass.note_credit);
    note_quant_group(scores, static_cast<int>(pass.stride), heads, t / quant_group_tokens, *pass.notes);
  }
}

template <ColumnFormat format, int count, bool first>
HWY_NOINLINE void run_few(const RunPass& pass) {
  run_pass<asks_between<format>()>(
      pass, [](const RunPass& p, int t, Lookahead::Due due) HWY_ATTR { add_few<format, count, first>(p, t, due); });
}

template <ColumnFormat format, bool first>
HWY_INLINE void run_few_columns(const RunPass& pass) {
  switch (pass.count) {
    case 1:
      return run_few<format, 1, first>(pass);
    case 2:
      return run_few<format, 2, first>(pass);
    case 3:
      return run_few<format, 3, first>(pass);
    default:
      return run_few<format, 4, first>(pass);
  }
}

template <ColumnFormat format>
HWY_NOINLINE void run_many(const RunPass& pass) {
  constexpr decltype(&add_many<format, 1>) adds[] = {add_many<format, 1>, add_many<format, 2>, add_many<format, 3>,
                                                     add_many<format, 4>};
  run_pass<true>(pass, adds[pass.query.heads - 1]);
}

template <ColumnFormat format>
void score_format(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores,
                  int stride, const TileNotes* notes) {
  constexpr bool can_many = heads_in_registers > 0 && !is_scaled(format);
  // A scan of more columns waits for memory, which likes few of them at a time.
  const bool many = can_many && query.heads <= heads_in_registers && query.rank <= 2 * most_columns_per_pass &&
                    tokens % quant_group_tokens == 0;
  const int most = many ? most_columns_per_pass : columns_per_pass;
  const int passes = (query.rank + most - 1) / most;
  const int per_pass = (query.rank + passes - 1) / passes;
  // The lookahead keeps the pace of the computation: what a column of a quantisation group costs, and what the notes
  // of the group do, in instructions, decides how much is asked for meanwhile. Before the last pass, which takes the
  // notes, less is asked for than is read.
  const int column_cost = 4 * query.heads + Keys<format>::load_cost / 4;
  const int note_cost = notes == nullptr ? 0 : (notes->references == nullptr ? 12 : 76) * query.heads;
  const int column_credit = 256 * query.rank * column_cost / (query.rank * column_cost + note_cost);
  const int note_credit = query.rank * (256 - column_credit);
  const int behind = tokens / quant_group_tokens * (passes - 1) * (256 - column_credit) / 256;
  Lookahead lookahead(query, run, next, tokens, per_pass, behind + least_lead);

  RunPass pass{query,  {},     {},      0,         true,          query.weights, tokens,
               scores, stride, nullptr, lookahead, column_credit, note_credit};
  for (int j = 0; j < query.rank; j += per_pass) {
    pass.count = std::min(per_pass, query.rank - j);
    for (int c = 0; c < pass.count; ++c) {
      pass.columns[c] = run.columns + query.offsets[j + c];
      if constexpr (is_scaled(format)) pass.scales[c] = run.scales + query.scale_offsets[j + c];
    }
    pass.first = j == 0;
    pass.weights = query.weights + j;
    pass.notes = j + pass.count == query.rank ? notes : nullptr;
    if (many) {
      if constexpr (can_many) run_many<format>(pass);
    } else if (pass.first) {
      run_few_columns<format, true>(pass);
    } else {
      run_few_columns<format, false>(pass);
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
