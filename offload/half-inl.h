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

// f16 (the low half of each 32-bit lane, zeros above) to f32, exactly, subnormals, infinities and NaN included,
// whatever the target has for it.
template <class DF, class VU>
HWY_INLINE hn::Vec<DF> widen(DF df, VU bits) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::BitCast(df, hn::Add(shifted, hn::Set(du, 112u << 23)));
  const auto special = hn::BitCast(df, hn::Or(shifted, hn::Set(du, 0x7f800000u)));
  const auto subnormal = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), hn::Set(df, 0x1p-24f));
  const auto is_subnormal = hn::RebindMask(df, hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x400)));
  const auto is_special = hn::RebindMask(df, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff)));
  const auto value = hn::IfThenElse(is_subnormal, subnormal, hn::IfThenElse(is_special, special, normal));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  return hn::Or(value, hn::BitCast(df, sign));
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
