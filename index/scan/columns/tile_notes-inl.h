// Takes notes about the scores of a quantisation group. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_TILE_NOTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_TILE_NOTES_INL_H_
#undef HAYLOFT_INDEX_TILE_NOTES_INL_H_
#else
#define HAYLOFT_INDEX_TILE_NOTES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/exp-inl.h"
#include "index/scan/softmax.h"
#include "index/scan/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {

HWY_INLINE Vec lane_maxima(const float* scores) {
  const D d;
  Vec most = hn::Load(d, scores);
  for (int t = lane_count; t < quant_group_tokens; t += lane_count) most = hn::Max(most, hn::Load(d, scores + t));
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

// As note_maxima(), for query heads [first, first + kHeads), four at most: how many is known when this is compiled, so
// that their vectors stay in registers.
template <int kHeads>
HWY_INLINE void note_maxima_of(const float* scores, std::ptrdiff_t stride, int first, int index,
                               const TileNotes& notes) {
  const D d;
  const Vec none = hn::Set(d, -infinity);
  const float* rows = scores + first * stride;
  float* maxima = notes.head_maxima + first * notes.maxima_stride + index;
  Vec v[4] = {none, none, none, none};
  for (int h = 0; h < kHeads; ++h) v[h] = lane_maxima(rows + h * stride);
  fold_maxima(v, kHeads, maxima, notes.maxima_stride);
  if (notes.seconds == nullptr) return;
  bool single[4] = {};
  for (int h = 0; h < kHeads; ++h) {
    const Vec most = hn::Set(d, maxima[h * notes.maxima_stride]);
    std::uint64_t places = 0;
    v[h] = none;
    for (int t = 0; t < quant_group_tokens; t += lane_count) {
      const Vec s = hn::Load(d, rows + h * stride + t);
      const auto equal = hn::Eq(s, most);
      std::uint8_t bits[8] = {};
      hn::StoreMaskBits(d, equal, bits);
      places |= (std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 8) << t;
      v[h] = hn::Max(v[h], hn::IfThenElse(equal, none, s));
    }
    single[h] = std::has_single_bit(places);
    notes.places[(first + h) * notes.maxima_stride + index] =
        static_cast<std::uint8_t>(std::min(std::countr_zero(places), quant_group_tokens - 1));
  }
  float* seconds = notes.seconds + first * notes.maxima_stride + index;
  fold_maxima(v, kHeads, seconds, notes.maxima_stride);
  for (int h = 0; h < kHeads; ++h) {
    if (!single[h]) seconds[h * notes.maxima_stride] = infinity;  // equals, or NaN
  }
}

// The largest score of the quantisation group for each query head; if wanted, its place and the largest of the others.
HWY_INLINE void note_maxima(const float* scores, std::ptrdiff_t stride, int heads, int index, const TileNotes& notes) {
  int first = 0;
  for (; first + 4 <= heads; first += 4) note_maxima_of<4>(scores, stride, first, index, notes);
  if (heads - first == 3) note_maxima_of<3>(scores, stride, first, index, notes);
  if (heads - first == 2) note_maxima_of<2>(scores, stride, first, index, notes);
  if (heads - first == 1) note_maxima_of<1>(scores, stride, first, index, notes);
}

// Adds a quantisation group's exponentials to the sums; returns the largest sum over the group.
HWY_INLINE float add_exponentials(const float* scores, std::ptrdiff_t stride, int heads, const TileNotes& notes) {
  const D d;
  const float* HWY_RESTRICT references = notes.references;
  Vec most = hn::Zero(d);
  for (int t = 0; t < quant_group_tokens; t += 2 * lane_count) {
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
  for (int t = 0; t < quant_group_tokens; t += lane_count) {
    Vec sum = hn::Load(d, scores + t);
    for (int h = 1; h < heads; ++h) {
      sum = hn::Add(sum, hn::Load(d, scores + static_cast<std::ptrdiff_t>(h) * stride + t));
    }
    most = hn::Max(most, sum);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

inline HWY_NOINLINE void note_quant_group(const float* scores, int stride, int heads, int index,
                                          const TileNotes& notes) {
  note_maxima(scores, stride, heads, index, notes);
  if (notes.group_maxima != nullptr && notes.group_score == GroupScore::logits) {
    notes.group_maxima[index] = largest_sum(scores, stride, heads);
  }
  if (notes.references != nullptr) {
    const float most = add_exponentials(scores, stride, heads, notes);
    if (notes.group_maxima != nullptr && notes.group_score == GroupScore::softmax) notes.group_maxima[index] = most;
  }
}

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
