// The vectors of the column kernels. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_VECTORS_INL_H_
#undef HAYLOFT_INDEX_VECTORS_INL_H_
#else
#define HAYLOFT_INDEX_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that whole vectors fit the shortest block.
using D = hn::CappedTag<float, 16>;
using Vec = hn::Vec<D>;

inline constexpr int lane_count = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
