// f16 in vectors of f32 bits. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_OFFLOAD_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_OFFLOAD_HALF_INL_H_
#undef HAYLOFT_OFFLOAD_HALF_INL_H_
#else
#define HAYLOFT_OFFLOAD_HALF_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x86 below AVX2 and the scalar target emulate f16 in Highway without infinities and without rounding; the
// integer versions here agree with to_float and to_f16 bit for bit.
#undef HAYLOFT_EMULATE_F16
#if (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2) || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
#define HAYLOFT_EMULATE_F16 1
#else
#define HAYLOFT_EMULATE_F16 0
#endif

// f16 to f32 of as many lanes.
template <class DF>
HWY_INLINE hn::Vec<DF> widen_half(DF d, hn::Vec<hn::Rebind<std::uint16_t, DF>> bits) {
#if HAYLOFT_EMULATE_F16
  const hn::RebindToUnsigned<DF> du;
  const auto wide = hn::PromoteTo(du, bits);
  const auto magnitude = hn::And(wide, hn::Set(du, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000u)));
  // Moved to f32's exponent field, a half is its value times 2^-112, subnormals included.
  const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::Gt(magnitude, hn::Set(du, 0x7bffu));
  const auto infinite = hn::IfThenElseZero(special, hn::Set(du, 0x7f800000u));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(du, scaled), infinite), sign));
#else
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
#endif
}

// Returns what is quantised in place of x, as finite() of quantise.h: infinity is the largest finite f16, NaN is 0.
template <class DF>
HWY_INLINE hn::Vec<DF> held_finite(DF d, hn::Vec<DF> x) {
  const auto held = hn::Min(hn::Max(x, hn::Set(d, -65504.0f)), hn::Set(d, 65504.0f));
  return hn::IfThenElseZero(hn::Eq(x, x), held);
}

// f32 to f16, rounded to nearest even.
template <class DF>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, DF>> narrow_half(DF d, hn::Vec<DF> x) {
#if HAYLOFT_EMULATE_F16
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::uint16_t, DF> d16;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto below = [&](std::uint32_t bound) HWY_ATTR {
    return hn::RebindMask(du, hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int32_t>(bound))));
  };
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xfffu)), odd);
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  const auto aligned = hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f)));
  const auto subnormal = hn::Sub(aligned, hn::Set(du, 0x3f000000u));
  const auto finite = hn::IfThenElse(below(0x38800000u), subnormal, normal);
  const auto special = hn::IfThenElse(below(0x7f800001u), hn::Set(du, 0x7c00u), hn::Set(du, 0x7e00u));
  return hn::DemoteTo(d16, hn::BitCast(di, hn::Or(hn::IfThenElse(below(0x477ff000u), finite, special), sign)));
#else
  (void)d;
  return hn::BitCast(hn::Rebind<std::uint16_t, DF>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), x));
#endif
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
