// The exponential of the vector kernels. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_EXP_INL_H_
#undef HAYLOFT_INDEX_EXP_INL_H_
#else
#define HAYLOFT_INDEX_EXP_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x = 2^n 2^f, n = round(x log2 e).
struct Exp {
  static constexpr float least = -87;  // e^least is still a normal number
  static constexpr float log2e = 0x1.715476p0f;
  static constexpr float shift = 0x1.8p23f + 127;  // adding it rounds to an integer

  // 2^n 2^f from x log2 e + shift, n and f in [-1/2, 1/2]: 2^f by the polynomial of degree 5 that has the least
  // relative error (9.2e-8) among those with 2^0 = 1 exactly; 1.7e-7 after rounding.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V power(D d, V shifted, V n, V f) {
    V p = hn::MulAdd(hn::Set(d, 0x1.5bba14p-10f), f, hn::Set(d, 0x1.3cea88p-7f));
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
    p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
    p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET == HWY_AVX3
    // One instruction, on either port, for the three below.
    if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(p.raw, n.raw)};
#else
    (void)n;
#endif
    // The low bits of `shifted` are n + 127, the exponent of 2^n.
    const hn::Rebind<std::int32_t, D> integers;
    return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(integers, shifted))));
  }
};

// exp(x) for x <= 80, as exp(-87) below x = -87, NaN for NaN. The relative error is below 2e-7 + 2^-23 |x|: one
// product with log2 e, which is what the column scan can afford.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  const V log2e = hn::Set(d, Exp::log2e);
  const V shift = hn::Set(d, Exp::shift);
  x = hn::Max(hn::Set(d, Exp::least), x);  // in this order x86 keeps a NaN
  const V shifted = hn::MulAdd(x, log2e, shift);
  const V n = hn::Sub(shifted, shift);
  return Exp::power(d, shifted, n, hn::MulSub(x, log2e, n));
}

// exp(x) for x <= 88: the relative error is below 2e-7 where the result is a normal number; 0 below x = -87, NaN for
// NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_accurate(D d, V x) {
  const V least = hn::Set(d, Exp::least);
  const V log2e = hn::Set(d, Exp::log2e);
  const V shift = hn::Set(d, Exp::shift);
  const V held = hn::Max(least, x);
  const V shifted = hn::MulAdd(held, log2e, shift);
  const V n = hn::Sub(shifted, shift);
  // ln 2 in two parts, the first short enough that n times it is exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), held);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  return hn::IfThenZeroElse(hn::Lt(x, least), Exp::power(d, shifted, n, hn::Mul(r, log2e)));
}

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
