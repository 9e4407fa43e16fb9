// Has the online softmax's step over scores. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_GPU_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_SOFTMAX_INL_H_
#undef HAYLOFT_GPU_CPU_SOFTMAX_INL_H_
#else
#define HAYLOFT_GPU_CPU_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gpu/attention_state.h"
#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Replaces scores [begin, end) by exp(s - max) under the running maximum, the other lanes of the vectors they lie in by
// zero, and returns the factor by which everything summed so far must shrink. Whole: the vectors have no other lanes.
template <bool Whole = false>
HWY_INLINE float softmax_step(F32 d, float* scores, int begin, int end, float& max, float& sum) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int from = begin / lanes * lanes;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto at = [&](int i) HWY_ATTR {
    auto s = hn::LoadU(d, scores + i);
    if (!Whole && i + lanes > end) s = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(end - i)), s, lowest);
    if (!Whole && i < begin) s = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(begin - i)), lowest, s);
    return s;
  };
  auto largest = lowest, other = lowest;  // two, because one waits for itself
  for (int i = from; i < end; i += 2 * lanes) {
    largest = hn::Max(largest, at(i));
    if (i + lanes < end) other = hn::Max(other, at(i + lanes));
  }
  const float grown = std::max(max, hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest, other))));
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

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
