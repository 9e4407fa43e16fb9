// Vectors of unknown length cannot be kept in arrays.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/scan/columns/group_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/columns/tile_notes-inl.h"
#include "index/scan/exp-inl.h"
#include "index/scan/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index {
namespace HWY_NAMESPACE {

void take_notes(const float* scores, int stride, int heads, int n, const TileNotes& notes) {
  for (int t = 0; t < n; t += quant_group_tokens)
    note_quant_group(scores + t, stride, heads, t / quant_group_tokens, notes);
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
HWY_INLINE void bound_quant_groups(Tag d, const float* maxima, std::int64_t stride, int heads, const float* sums,
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
    bound_quant_groups(D(), maxima, stride, heads, sums, n, offset, ratios, per_tile, lower, upper);
  } else {
    bound_quant_groups(hn::CappedTag<float, 4>(), maxima, stride, heads, sums, n, offset, ratios, per_tile, lower,
                       upper);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::index
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(take_notes);
HWY_EXPORT(group_scores);
HWY_EXPORT(softmax_bounds);

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
