// Multiplies a few rows with a panel, two vectors wide, with the sums in registers. Included once per SIMD target.
#if defined(HAYLOFT_GPU_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_PANEL_INL_H_
#undef HAYLOFT_GPU_CPU_PANEL_INL_H_
#else
#define HAYLOFT_GPU_CPU_PANEL_INL_H_
#endif

#include <cstddef>
#include <utility>

#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Rows times the two vectors of a panel are kept in registers: 24 of 32, or 12 of 16.
constexpr int kBlockRows = HWY_MAX_BYTES >= 64 ? 12 : 6;
using BlockRows = std::make_index_sequence<kBlockRows>;

HWY_INLINE int panel_width() {
  return 2 * static_cast<int>(hn::Lanes(F32()));
}

// Says what a product does with what stands where it goes: nothing, begin its sums with it, or add it to them at last.
enum class Sum { fresh, goes_on, is_added };

// c [rows][width] = a [rows][n] * b [n][width], for as many rows as there are indices; b has b_stride floats from row
// to row. The indices are spelled out so that the sums are registers from the first to the last.
template <Sum kSum, std::size_t... kRow>
HWY_NOINLINE void multiply_panel(std::index_sequence<kRow...>, const float* HWY_RESTRICT a, std::size_t a_stride,
                                 const float* HWY_RESTRICT b, std::size_t b_stride, int n, float* HWY_RESTRICT c,
                                 std::size_t c_stride) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr bool kGoesOn = kSum == Sum::goes_on;
  F32Vec left[] = {(kGoesOn ? hn::LoadU(d, c + kRow * c_stride) : hn::Zero(d))...};
  F32Vec right[] = {(kGoesOn ? hn::LoadU(d, c + kRow * c_stride + lanes) : hn::Zero(d))...};
  for (int i = 0; i < n; ++i, b += b_stride) {
    const auto b0 = hn::Load(d, b), b1 = hn::Load(d, b + lanes);
    ((left[kRow] = hn::MulAdd(hn::Set(d, a[kRow * a_stride + i]), b0, left[kRow]),
      right[kRow] = hn::MulAdd(hn::Set(d, a[kRow * a_stride + i]), b1, right[kRow])),
     ...);
  }
  if constexpr (kSum == Sum::is_added) {
    ((left[kRow] = hn::Add(hn::LoadU(d, c + kRow * c_stride), left[kRow]),
      right[kRow] = hn::Add(hn::LoadU(d, c + kRow * c_stride + lanes), right[kRow])),
     ...);
  }
  (hn::StoreU(left[kRow], d, c + kRow * c_stride), ...);
  (hn::StoreU(right[kRow], d, c + kRow * c_stride + lanes), ...);
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
