// Vector building blocks shared by the CPU kernels. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_GPU_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_SIMD_INL_H_
#undef HAYLOFT_GPU_CPU_SIMD_INL_H_
#else
#define HAYLOFT_GPU_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "index/scan/exp-inl.h"
#include "offload/half-inl.h"
#include "offload/half.h"

// Stands behind the parameters of a lambda within a kernel. Whatever the lambda refers to stays in registers only where
// it is inlined before all else: GCC otherwise writes arrays of sums that it captures to the stack at each step, where
// nothing reads them.
#undef HAYLOFT_KERNEL_LAMBDA
#define HAYLOFT_KERNEL_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that scratch rows padded to 16 floats hold whole vectors.
using F32 = hn::CappedTag<float, 16>;
using F32Vec = hn::Vec<F32>;

// Vectors of query heads that a kernel keeps accumulators for at once: 32 registers allow four, 16 allow two.
inline constexpr int kQueriesAtOnce = HWY_MAX_BYTES >= 64 ? 4 : 2;

using offload::HWY_NAMESPACE::narrow_half;
using offload::HWY_NAMESPACE::widen_half;

using Bits16 = hn::Vec<hn::Rebind<std::uint16_t, F32>>;

HWY_INLINE Bits16 load_bits(const void* p) {
  return hn::LoadU(hn::Rebind<std::uint16_t, F32>(), static_cast<const std::uint16_t*>(p));
}

// Lanes(d) consecutive elements, widened to f32.
HWY_INLINE F32Vec load(F32 d, const float* p) {
  return hn::LoadU(d, p);
}
HWY_INLINE F32Vec load(F32 d, const f16* p) {
  return widen_half(d, load_bits(p));
}
HWY_INLINE F32Vec load(F32 d, const bf16* p) {
  const hn::RebindToUnsigned<F32> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, load_bits(p))));
}

// The first n < Lanes(d) elements, zeros behind; nothing past them is read.
template <class T>
HWY_INLINE F32Vec load_part(F32 d, const T* p, std::size_t n) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if constexpr (sizeof(T) == 2) {
    const hn::Rebind<std::uint16_t, F32> d16;
    const auto bits = hn::MaskedLoad(hn::FirstN(d16, n), d16, reinterpret_cast<const std::uint16_t*>(p));
    if constexpr (std::is_same_v<T, f16>) return widen_half(d, bits);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<F32>(), bits)));
  } else {
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  }
#else
  HWY_ALIGN T padded[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(padded, p, n * sizeof(T));
  return load(d, padded);
#endif
}

// The first n <= Lanes(d) lanes of x to p, rounded to nearest even; nothing past them is written.
HWY_INLINE void store_part(F32 d, F32Vec x, std::size_t n, float* p) {
  if (n == hn::Lanes(d)) return hn::StoreU(x, d, p);
  HWY_ALIGN float whole[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(x, d, whole);
  std::memcpy(p, whole, n * sizeof(float));
}
HWY_INLINE void store_part(F32 d, F32Vec x, std::size_t n, f16* p) {
  const hn::Rebind<std::uint16_t, F32> d16;
  const auto bits = narrow_half(d, x);
  if (n == hn::Lanes(d)) return hn::StoreU(bits, d16, reinterpret_cast<std::uint16_t*>(p));
  HWY_ALIGN std::uint16_t whole[HWY_MAX_BYTES / sizeof(float)];
  hn::StoreU(bits, d16, whole);
  std::memcpy(static_cast<void*>(p), whole, n * sizeof(f16));
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sums(F32, F32Vec v0, F32Vec v1, F32Vec v2, F32Vec v3, float* out) {
  out[0] = hn::GetLane(v0);
  out[1] = hn::GetLane(v1);
  out[2] = hn::GetLane(v2);
  out[3] = hn::GetLane(v3);
}
#else
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> fold_blocks(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The sums of the lanes of four vectors, to out[0..3].
HWY_INLINE void store_sums(F32 d, F32Vec v0, F32Vec v1, F32Vec v2, F32Vec v3, float* out) {
  const hn::Repartition<std::uint64_t, F32> d64;
  const auto v01 = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const auto v23 = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto lower = hn::InterleaveLower(d64, hn::BitCast(d64, v01), hn::BitCast(d64, v23));
  const auto upper = hn::InterleaveUpper(d64, hn::BitCast(d64, v01), hn::BitCast(d64, v23));
  const auto sums = hn::Add(hn::BitCast(d, lower), hn::BitCast(d, upper));
  hn::StoreU(fold_blocks(d, sums), hn::CappedTag<float, 4>(), out);
}
#endif

// Asks for nothing.
struct NoPrefetch {
  HWY_INLINE void step() {}
};

// Does dot_four() of n elements, which are Whole vectors or have a part of one behind them: without it no sum leaves
// its register. The vectors stay there as well and the rows pass one at a time: 12 sums, 3 vectors and a row are 16.
template <int Q, bool Whole, class T, class Prefetch>
HWY_INLINE void dot_four_of(F32 d, const T* const* rows, const float* x, std::size_t x_stride, std::size_t n,
                            float* out, std::size_t out_stride, Prefetch& prefetch) {
  const std::size_t lanes = hn::Lanes(d);
  F32Vec sum[Q][4];
  for (int q = 0; q < Q; ++q)
    for (int row = 0; row < 4; ++row) sum[q][row] = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    prefetch.step();
    F32Vec xs[Q];
    for (int q = 0; q < Q; ++q) xs[q] = load(d, x + q * x_stride + i);
    for (int row = 0; row < 4; ++row) {
      const auto w = load(d, rows[row] + i);
      for (int q = 0; q < Q; ++q) sum[q][row] = hn::MulAdd(w, xs[q], sum[q][row]);
    }
  }
  if constexpr (!Whole) {
    F32Vec xs[Q];
    for (int q = 0; q < Q; ++q) xs[q] = load_part(d, x + q * x_stride + i, n - i);
    for (int row = 0; row < 4; ++row) {
      const auto w = load_part(d, rows[row] + i, n - i);
      for (int q = 0; q < Q; ++q) sum[q][row] = hn::MulAdd(w, xs[q], sum[q][row]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    store_sums(d, sum[q][0], sum[q][1], sum[q][2], sum[q][3], out + q * out_stride);
  }
}

// Inner products of four rows with Q vectors of n elements: out[q * out_stride + row]. Between the steps of the sum,
// `prefetch` may ask for whatever is read next.
template <int Q, class T, class Prefetch>
HWY_INLINE void dot_four(F32 d, const T* const* rows, const float* x, std::size_t x_stride, std::size_t n, float* out,
                         std::size_t out_stride, Prefetch& prefetch) {
  if (n % hn::Lanes(d) == 0) return dot_four_of<Q, true>(d, rows, x, x_stride, n, out, out_stride, prefetch);
  dot_four_of<Q, false>(d, rows, x, x_stride, n, out, out_stride, prefetch);
}

// Cuts n query heads (or tokens) into runs that fit the registers: body(integral_constant<int, Q>, first). kThrees, for
// sums that need no other registers: runs of six, and of three at the end, where the registers hold four; where they
// hold fewer, all are runs of three, but for one or two at the end or twice two.
template <bool kThrees = false, class Body>
HWY_INLINE void for_each_run(int n, const Body& body) {
  int q = 0;
  if constexpr (kQueriesAtOnce == 4) {
    for (; kThrees && q + 6 <= n; q += 6) body(std::integral_constant<int, 6>(), q);
    for (; q + 4 <= n; q += 4) body(std::integral_constant<int, 4>(), q);
    if (kThrees && q + 3 == n) return body(std::integral_constant<int, 3>(), q);
  } else if constexpr (kThrees) {
    for (; q + 3 <= n && q + 4 != n; q += 3) body(std::integral_constant<int, 3>(), q);
  }
  for (; q + 2 <= n; q += 2) body(std::integral_constant<int, 2>(), q);
  if (q < n) body(std::integral_constant<int, 1>(), q);
}

// dot_four for any number of vectors.
template <class T, class Prefetch>
HWY_INLINE void dot_four(F32 d, const T* const* rows, const float* x, int vectors, std::size_t x_stride, std::size_t n,
                         float* out, std::size_t out_stride, Prefetch& prefetch) {
  for_each_run<true>(vectors, [&](auto run, int q) HWY_ATTR {
    dot_four<run()>(d, rows, x + q * x_stride, x_stride, n, out + q * out_stride, out_stride, prefetch);
  });
}

// exp(-|x|) never overflows: for x < 0 the sigmoid is e / (1 + e) instead of 1 / (1 + e).
HWY_INLINE F32Vec sigmoid(F32 d, F32Vec x) {
  const auto one = hn::Set(d, 1.0f);
  const auto e = index::HWY_NAMESPACE::exp_accurate(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
