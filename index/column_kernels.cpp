// Vectors of unknown length cannot be kept in arrays.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/column_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
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
constexpr int registers = HWY_TARGET <= HWY_AVX3 ? 32 : 16;
constexpr int cache_line = 64;  // bytes
constexpr float infinity = std::numeric_limits<float>::infinity();

// Columns added in one pass over a tile: their keys stay in registers while all query heads use them. One at a time
// would spend its time on the sums; more at once would be too many streams for the memory.
constexpr int columns_per_pass = 4;

// Vectors of tokens that share one broadcast weight.
constexpr int unroll = registers == 32 ? 4 : 2;

// Asks for the columns of the run at hand and of the next one in the order they will be read, a subtile of one pass at
// a time: an even pace keeps the memory busy while the processor computes, exponentials included. (Left to itself the
// processor looks ahead some hundred instructions, less than one subtile.) Into the second-level cache, since the first
// is full of scores.
class Lookahead {
 public:
  // `lead` passes of the current run have been asked for already.
  Lookahead(const HeadQuery& query, const std::byte* current, const std::byte* next, int tokens, int lead)
      : query_(query),
        run_(current),
        next_(next),
        bytes_(tokens / subtile_tokens * subtile_bytes),
        column_(lead * columns_per_pass) {
    // A subtile or two are asked for at once, by prefetch_run.
    if (bytes_ <= 2 * subtile_bytes) bytes_ = 0;
    if (bytes_ > 0) start_pass();
  }

  // Adds to how much may be asked for, in 256ths of a subtile of a pass, and asks for it.
  HWY_INLINE void advance(int credit) {
    for (credit_ += credit; credit_ > 0 && bytes_ > 0; credit_ -= 256) {
      for (const std::byte* column : pass_) {
        __builtin_prefetch(column + at_, 0, 2);
        __builtin_prefetch(column + at_ + cache_line, 0, 2);
      }
      at_ += subtile_bytes;
      if (at_ < bytes_) continue;
      column_ += columns_per_pass;
      start_pass();
    }
  }

 private:
  static constexpr int subtile_bytes = subtile_tokens * static_cast<int>(sizeof(Half));

  HWY_NOINLINE void start_pass() {
    at_ = 0;
    if (column_ >= query_.rank) {
      run_ = next_;
      next_ = nullptr;
      column_ = 0;
    }
    if (run_ == nullptr) {
      bytes_ = 0;
      return;
    }
    for (int c = 0; c < columns_per_pass; ++c) {
      pass_[c] = run_ + query_.offsets[std::min(column_ + c, query_.rank - 1)];
    }
  }

  const HeadQuery& query_;
  const std::byte* run_;
  const std::byte* next_;
  std::ptrdiff_t bytes_;
  int column_;
  int credit_ = 0;
  std::ptrdiff_t at_ = 0;
  const std::byte* pass_[columns_per_pass] = {};
};

// Adds `count` columns to the scores of every query head, for `vectors` vectors of tokens from t on. The first pass
// starts the sums.
template <int count, int vectors, bool first>
HWY_INLINE void add_columns(const Half* const* columns, const float* HWY_RESTRICT weights, int rank, int heads,
                            float* HWY_RESTRICT scores, std::ptrdiff_t stride) {
  const D d;
  const hn::Rebind<Half, D> half;
  Vec x[count][vectors];
  for (int c = 0; c < count; ++c) {
    for (int v = 0; v < vectors; ++v) x[c][v] = hn::PromoteTo(d, hn::LoadU(half, columns[c] + v * lane_count));
  }
  for (int h = 0; h < heads; ++h, weights += rank, scores += stride) {
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

// e^x = 2^n 2^f with n = round(x log2 e); 2^f on [-1/2, 1/2] by the polynomial of degree 5 that has the least relative
// error (9.2e-8) among those with 2^0 = 1 exactly; 1.7e-7 after rounding. Adding `shift` rounds to an integer.
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE V exp(Tag d, V x) {
  const V log2e = hn::Set(d, 0x1.715476p0f);
  const V shift = hn::Set(d, 0x1.8p23f + 127.0f);
  x = hn::Max(hn::Set(d, -87.0f), x);  // in this order x86 keeps a NaN
  const V shifted = hn::MulAdd(x, log2e, shift);
  const V n = hn::Sub(shifted, shift);
  const V f = hn::MulSub(x, log2e, n);
  V p = hn::MulAdd(hn::Set(d, 0x1.5bba14p-10f), f, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET == HWY_AVX3
  // One instruction, on either port, for the three below.
  if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(p.raw, n.raw)};
#endif
  // The low bits of `shifted` are n + 127, the exponent of 2^n.
  const hn::Rebind<std::int32_t, Tag> integers;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(integers, shifted))));
}

HWY_INLINE Vec lane_maxima(const float* scores) {
  const D d;
  Vec most = hn::Load(d, scores);
  for (int t = lane_count; t < subtile_tokens; t += lane_count) most = hn::Max(most, hn::Load(d, scores + t));
  return most;
}

// out[i] = the largest lane of v[i], i < count, of four vectors.
HWY_INLINE void fold_maxima(const Vec* v, int count, float* out, std::int64_t stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < count; ++i) out[i * stride] = hn::GetLane(v[i]);
#else
  const D d;
  const hn::Repartition<double, D> pairs;
  const auto v01 = hn::BitCast(pairs, hn::Max(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
  const auto v23 = hn::BitCast(pairs, hn::Max(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
  Vec all = hn::Max(hn::BitCast(d, hn::InterleaveLower(pairs, v01, v23)),
                    hn::BitCast(d, hn::InterleaveUpper(pairs, v01, v23)));  // all four in every block of 128 bits
  if constexpr (lane_count >= 8) all = hn::Max(all, hn::ConcatLowerUpper(d, all, all));
  if constexpr (lane_count == 16) all = hn::Max(all, hn::SwapAdjacentBlocks(all));
  HWY_ALIGN float maxima[lane_count];
  hn::Store(all, d, maxima);
  for (int i = 0; i < count; ++i) out[i * stride] = maxima[i];
#endif
}

// The largest score of the subtile for each query head; if wanted, its place and the largest of the others.
HWY_INLINE void note_maxima(const float* scores, std::ptrdiff_t stride, int heads, int index, const TileNotes& notes) {
  const D d;
  const Vec none = hn::Set(d, -infinity);
  for (int first = 0; first < heads; first += 4) {
    const int count = std::min(4, heads - first);
    const float* rows = scores + first * stride;
    float* maxima = notes.head_maxima + first * notes.maxima_stride + index;
    Vec v[4] = {none, none, none, none};
    for (int h = 0; h < count; ++h) v[h] = lane_maxima(rows + h * stride);
    fold_maxima(v, count, maxima, notes.maxima_stride);
    if (notes.seconds == nullptr) continue;
    bool single[4] = {};
    for (int h = 0; h < count; ++h) {
      const Vec most = hn::Set(d, maxima[h * notes.maxima_stride]);
      std::uint64_t places = 0;
      v[h] = none;
      for (int t = 0; t < subtile_tokens; t += lane_count) {
        const Vec s = hn::Load(d, rows + h * stride + t);
        const auto equal = hn::Eq(s, most);
        std::uint8_t bits[8] = {};
        hn::StoreMaskBits(d, equal, bits);
        places |= (std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 8) << t;
        v[h] = hn::Max(v[h], hn::IfThenElse(equal, none, s));
      }
      single[h] = std::has_single_bit(places);
      notes.places[(first + h) * notes.maxima_stride + index] =
          static_cast<std::uint8_t>(std::min(std::countr_zero(places), subtile_tokens - 1));
    }
    float* seconds = notes.seconds + first * notes.maxima_stride + index;
    fold_maxima(v, count, seconds, notes.maxima_stride);
    for (int h = 0; h < count; ++h) {
      if (!single[h]) seconds[h * notes.maxima_stride] = infinity;  // equals, or NaN
    }
  }
}

// Adds a subtile's exponentials to the sums; returns the largest sum over the group.
HWY_INLINE float add_exponentials(const float* scores, std::ptrdiff_t stride, int heads, const TileNotes& notes) {
  const D d;
  const float* HWY_RESTRICT references = notes.references;
  Vec most = hn::Zero(d);
  for (int t = 0; t < subtile_tokens; t += 2 * lane_count) {
    Vec group0 = hn::Zero(d);
    Vec group1 = hn::Zero(d);
    const float* row = scores + t;
    float* HWY_RESTRICT sums = notes.sums;
    for (int h = 0; h < heads; ++h, row += stride, sums += 16) {
      const Vec reference = hn::Set(d, references[h]);
      const Vec e0 = exp(d, hn::Sub(hn::Load(d, row), reference));
      const Vec e1 = exp(d, hn::Sub(hn::Load(d, row + lane_count), reference));
      group0 = hn::Add(group0, e0);
      group1 = hn::Add(group1, e1);
      hn::Store(hn::Add(hn::Load(d, sums), hn::Add(e0, e1)), d, sums);
    }
    most = hn::Max(most, hn::Max(group0, group1));
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

HWY_INLINE float largest_sum(const float* scores, int stride, int heads) {
  const D d;
  Vec most = hn::Set(d, -infinity);
  for (int t = 0; t < subtile_tokens; t += lane_count) {
    Vec sum = hn::Load(d, scores + t);
    for (int h = 1; h < heads; ++h) {
      sum = hn::Add(sum, hn::Load(d, scores + static_cast<std::ptrdiff_t>(h) * stride + t));
    }
    most = hn::Max(most, sum);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

HWY_NOINLINE void note_subtile(const float* scores, int stride, int heads, int index, const TileNotes& notes) {
  note_maxima(scores, stride, heads, index, notes);
  if (notes.group_maxima != nullptr && notes.group_score == GroupScore::logits) {
    notes.group_maxima[index] = largest_sum(scores, stride, heads);
  }
  if (notes.references != nullptr) {
    const float most = add_exponentials(scores, stride, heads, notes);
    if (notes.group_maxima != nullptr && notes.group_score == GroupScore::softmax) notes.group_maxima[index] = most;
  }
}

void take_notes(const float* scores, int stride, int heads, int n, const TileNotes& notes) {
  for (int t = 0; t < n; t += subtile_tokens) note_subtile(scores + t, stride, heads, t / subtile_tokens, notes);
}

// One pass over a run.
struct RunPass {
  const HeadQuery& query;
  const Half* columns[columns_per_pass];
  const float* weights;  // of the first column, [heads][query.rank]
  int tokens;
  float* scores;
  std::ptrdiff_t stride;
  const TileNotes* notes;  // null before the last pass
  Lookahead& lookahead;
  int pass_credit;
  int note_credit;
};

template <int count, bool first>
HWY_NOINLINE void run_pass(const RunPass& shared) {
  const RunPass pass = shared;  // a copy that no store can change
  const int rank = pass.query.rank;
  const int heads = pass.query.heads;
  for (int t = 0; t < pass.tokens; t += subtile_tokens) {
    pass.lookahead.advance(pass.pass_credit);
    const Half* columns[count];
    for (int c = 0; c < count; ++c) columns[c] = pass.columns[c] + t;
    float* scores = pass.scores + t;
    if (pass.tokens - t >= subtile_tokens) {
      for (int u = 0; u < subtile_tokens; u += unroll * lane_count) {
        add_columns<count, unroll, first>(columns, pass.weights, rank, heads, scores + u, pass.stride);
        for (const Half*& column : columns) column += unroll * lane_count;
      }
    } else {
      const int end = (pass.tokens - t + 15) / 16 * 16;
      for (int u = 0; u < end; u += lane_count) {
        add_columns<count, 1, first>(columns, pass.weights, rank, heads, scores + u, pass.stride);
        for (const Half*& column : columns) column += lane_count;
      }
    }
    if (pass.notes == nullptr) continue;
    for (int h = 0; h < heads && pass.tokens - t < subtile_tokens; ++h) {
      std::fill(scores + h * pass.stride + (pass.tokens - t), scores + h * pass.stride + subtile_tokens, -infinity);
    }
    pass.lookahead.advance(pass.note_credit);
    note_subtile(scores, static_cast<int>(pass.stride), heads, t / subtile_tokens, *pass.notes);
  }
}

template <bool first>
HWY_INLINE void run_pass(int count, const RunPass& pass) {
  switch (count) {
    case 1:
      return run_pass<1, first>(pass);
    case 2:
      return run_pass<2, first>(pass);
    case 3:
      return run_pass<3, first>(pass);
    default:
      return run_pass<4, first>(pass);
  }
}

void score_run(const HeadQuery& query, const std::byte* first, const std::byte* next, int tokens, float* scores,
               int stride, const TileNotes* notes) {
  // The lookahead keeps the pace of the computation: what a pass over a subtile costs, and what its notes do, in
  // instructions, decides how much is asked for meanwhile. So when the last notes are taken it is a share of a run
  // ahead of the reads to come, and some passes more.
  const int passes = (query.rank + columns_per_pass - 1) / columns_per_pass;
  const int pass_cost = 16 * query.heads + 32;
  const int note_cost = notes == nullptr ? 0 : (notes->references == nullptr ? 12 : 76) * query.heads;
  const int pass_credit = 256 * passes * pass_cost / (passes * pass_cost + note_cost);
  const int note_credit = 256 * passes - passes * pass_credit;
  const int lead = std::min(passes, (note_credit + 255) / 256 + 1);
  Lookahead lookahead(query, first, next, tokens, lead);

  RunPass pass{query, {}, query.weights, tokens, scores, stride, nullptr, lookahead, pass_credit, note_credit};
  for (int j = 0; j < query.rank; j += columns_per_pass) {
    const int count = std::min(columns_per_pass, query.rank - j);
    for (int c = 0; c < count; ++c) pass.columns[c] = reinterpret_cast<const Half*>(first + query.offsets[j + c]);
    pass.weights = query.weights + j;
    pass.notes = j + count == query.rank ? notes : nullptr;
    if (j == 0) {
      run_pass<true>(count, pass);
    } else {
      run_pass<false>(count, pass);
    }
  }
}

void prefetch_run(const HeadQuery& query, const std::byte* first, int tokens) {
  for (int j = 0; j < query.rank; ++j) {
    for (int t = 0; t < tokens; t += subtile_tokens / 2)
      __builtin_prefetch(first + query.offsets[j] + t * sizeof(Half), 0, 2);
  }
}

void group_scores(GroupScore kind, const float* scores, int stride, int heads, int n, const float* reference,
                  float* out) {
  const D d;
  for (int t = 0; t < n; t += lane_count) {
    Vec sum = hn::Load(d, scores + t);
    if (kind == GroupScore::softmax) sum = exp(d, hn::Sub(sum, hn::Set(d, reference[0])));
    for (int h = 1; h < heads; ++h) {
      Vec s = hn::Load(d, scores + static_cast<std::ptrdiff_t>(h) * stride + t);
      if (kind == GroupScore::softmax) s = exp(d, hn::Sub(s, hn::Set(d, reference[h])));
      sum = hn::Add(sum, s);
    }
    hn::Store(sum, d, out + t);
  }
}

// For tag d, none of whose vectors spans two tiles.
template <class Tag>
HWY_INLINE void bound_subtiles(Tag d, const float* maxima, std::int64_t stride, int heads, const float* sums,
                               std::int64_t n, const float* offset, const SoftmaxRatio* ratios, int per_tile,
                               float* lower, float* upper) {
  // Two computations of one score differ by the errors of exp (1.1e-5 at |x| = 87, twice), of adding the group (2^-24
  // for each query head, twice) and of scaling: together less than this for any group up to 500. Neither follows exp
  // below exp(-87) = 1.65e-38.
  constexpr float margin = 1e-4f;
  const auto floor = hn::Set(d, 1.7e-38f * static_cast<float>(heads));
  const auto less = hn::Set(d, 1 - margin);
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    auto most = hn::Zero(d);
    auto sum = hn::Zero(d);
    for (int h = 0; h < heads; ++h) {
      const auto e = exp(d, hn::Sub(hn::Load(d, maxima + h * stride + i), hn::Set(d, offset[h])));
      most = hn::Max(most, e);
      sum = hn::Add(sum, e);
    }
    const SoftmaxRatio ratio = ratios[i / per_tile];
    const auto noted = hn::Load(d, sums + i);
    const auto low = hn::Mul(hn::MulSub(noted, less, floor), hn::Set(d, ratio.least));
    const auto high = hn::Min(sum, hn::Mul(noted, hn::Set(d, ratio.most)));
    hn::Store(hn::Max(hn::Mul(most, less), low), d, lower + i);
    hn::Store(hn::MulAdd(high, hn::Set(d, 1 + margin), floor), d, upper + i);
  }
}

void softmax_bounds(const float* maxima, std::int64_t stride, int heads, const float* sums, std::int64_t n,
                    const float* offset, const SoftmaxRatio* ratios, int per_tile, float* lower, float* upper) {
  if (per_tile % lane_count == 0) {
    bound_subtiles(D(), maxima, stride, heads, sums, n, offset, ratios, per_tile, lower, upper);
  } else {
    bound_subtiles(hn::CappedTag<float, 4>(), maxima, stride, heads, sums, n, offset, ratios, per_tile, lower, upper);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::index
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(score_run);
HWY_EXPORT(prefetch_run);
HWY_EXPORT(take_notes);
HWY_EXPORT(group_scores);
HWY_EXPORT(softmax_bounds);

void score_run(const HeadQuery& query, const std::byte* first, const std::byte* next, int tokens, float* scores,
               int stride, const TileNotes* notes) {
  HWY_DYNAMIC_DISPATCH(score_run)(query, first, next, tokens, scores, stride, notes);
}

void prefetch_run(const HeadQuery& query, const std::byte* first, int tokens) {
  HWY_DYNAMIC_DISPATCH(prefetch_run)(query, first, tokens);
}

void take_notes(const float* scores, int stride, int heads, int n, const TileNotes& notes) {
  HWY_DYNAMIC_DISPATCH(take_notes)(scores, stride, heads, n, notes);
}

void group_scores(GroupScore kind, const float* scores, int stride, int heads, int n, const float* reference,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(group_scores)(kind, scores, stride, heads, n, reference, out);
}

void softmax_bounds(const float* maxima, std::int64_t stride, int heads, const float* sums, std::int64_t n,
                    const float* offset, const SoftmaxRatio* ratios, int per_tile, float* lower, float* upper) {
  HWY_DYNAMIC_DISPATCH(softmax_bounds)(maxima, stride, heads, sums, n, offset, ratios, per_tile, lower, upper);
}

}  // namespace hayloft::index
#endif
