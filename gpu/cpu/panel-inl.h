// Multiplies a few rows with a panel, two vectors wide, with the sums in registers, and lays rows down in one. Included
// once per SIMD target.
#if defined(HAYLOFT_GPU_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_PANEL_INL_H_
#undef HAYLOFT_GPU_CPU_PANEL_INL_H_
#else
#define HAYLOFT_GPU_CPU_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

// Writes four rows f32 [n] to [n][stride], side by side.
HWY_INLINE void turn_four(const float* const (&rows)[4], int n, float* to, std::size_t stride) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  const auto pairs = [&](auto a, auto b, float* first, float* second) HWY_ATTR {
    const auto x = hn::BitCast(d64, a), y = hn::BitCast(d64, b);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, x, y)), d, first);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, x, y)), d, second);
  };
  for (; i + 4 <= n; i += 4, to += 4 * stride) {
    const auto r0 = hn::LoadU(d, rows[0] + i), r1 = hn::LoadU(d, rows[1] + i);
    const auto r2 = hn::LoadU(d, rows[2] + i), r3 = hn::LoadU(d, rows[3] + i);
    pairs(hn::InterleaveLower(d, r0, r1), hn::InterleaveLower(d, r2, r3), to, to + stride);
    pairs(hn::InterleaveUpper(d, r0, r1), hn::InterleaveUpper(d, r2, r3), to + 2 * stride, to + 3 * stride);
  }
#endif
  for (; i < n; ++i, to += stride)
    for (int row = 0; row < 4; ++row) to[row] = rows[row][i];
}

// Writes zeros to the columns [from, stride) of a panel [n][stride].
HWY_INLINE void fill_up(float* panel, int n, int from, std::size_t stride) {
  if (static_cast<std::size_t>(from) >= stride) return;
  for (int i = 0; i < n; ++i) std::fill(panel + i * stride + from, panel + (i + 1) * stride, 0.0f);
}

// Lays `count` rows f32 [n] down in a panel [n][stride], with zeros behind them. row(i) returns one; it stays where it
// is until three others have been asked for.
template <class Row>
HWY_INLINE void lay_down(int count, int n, const Row& row, float* panel, std::size_t stride) {
  for (int i = 0; i < count; i += 4) {
    const float* four[4];
    for (int j = 0; j < 4; ++j) four[j] = row(std::min(i + j, count - 1));
    turn_four(four, n, panel + i, stride);
  }
  fill_up(panel, n, count, stride);
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
