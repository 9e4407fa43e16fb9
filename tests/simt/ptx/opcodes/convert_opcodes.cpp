#include <cmath>
#include <limits>
#include <type_traits>

#include "offload/half.h"
#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "cvt": D.S in the name is to D from S. Registers may be wider than either type: of a source the low bits
// count, and what becomes an integer is extended by its own sign.
namespace hayloft::simt::ptx {
namespace {

using u64 = std::uint64_t;

template <class T>
T from_bits(u64 bits) {
  if constexpr (std::is_same_v<T, f16>) {
    return f16{static_cast<std::uint16_t>(bits)};
  } else if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<double>(bits);
  } else {
    return static_cast<T>(bits);
  }
}
u64 to_bits(f16 x) {
  return x.bits;
}
u64 to_bits(float x) {
  return x != x ? 0x7fffffffu : std::bit_cast<std::uint32_t>(x);
}
u64 to_bits(double x) {
  return std::bit_cast<u64>(x);
}
template <class T>
u64 to_bits(T x) {
  return static_cast<u64>(static_cast<std::int64_t>(x));  // sign-extended where T has a sign
}

template <class Function, class To, class From>
void convert(Warp& warp, const Instruction& in, Mask lanes) {
  for_each_lane(lanes, [&](unsigned lane) {
    const To result = Function{}(from_bits<From>(warp.bits(in.from[0], lane)));
    warp.set_bits(in.to[0], lane, to_bits(result));
  });
}

template <class Signature>
struct Conversion;
template <class To, class From>
struct Conversion<To(From)> {
  template <class Function>
  static Opcode make(std::string name, Type to, Type from, Function) {
    return {.name = std::move(name), .to = {to}, .from = {from}, .any_width = true, .run = convert<Function, To, From>};
  }
};

// Out of range: the nearest integer there is. NaN: 0 between the narrower types, else the highest bit alone.
template <class To, class From>
To integer(From x) {
  constexpr bool zero = sizeof(From) == 4 && sizeof(To) < 8;
  if (x != x) return zero ? To{0} : static_cast<To>(u64{1} << (8 * sizeof(To) - 1));
  const From limit = std::ldexp(From{1}, 8 * sizeof(To) - (std::is_signed_v<To> ? 1 : 0));
  if (x >= limit) return std::numeric_limits<To>::max();
  if (x < (std::is_signed_v<To> ? -limit : From{0})) return std::numeric_limits<To>::min();
  return static_cast<To>(x);
}

}  // namespace

void add_convert_opcodes(std::vector<Opcode>& to) {
  using s8 = std::int8_t;
  using u8 = std::uint8_t;
  using u16 = std::uint16_t;
  using s16 = std::int16_t;
  using u32 = std::uint32_t;
  using s32 = std::int32_t;
  using s64 = std::int64_t;
  const auto add = [&]<class Signature>(std::string name, Type result, Type source, auto function) {
    to.push_back(Conversion<Signature>::make(std::move(name), result, source, function));
  };
  const auto same = [](auto x) { return x; };
  add.operator()<s8(s8)>("cvt.s32.s8", Type::s32, Type::s8, same);
  add.operator()<s8(s8)>("cvt.s16.s8", Type::s16, Type::s8, same);
  add.operator()<u8(u8)>("cvt.u32.u8", Type::u32, Type::u8, same);
  add.operator()<u16(u32)>("cvt.u16.u32", Type::u16, Type::u32, [](u32 x) { return static_cast<u16>(x); });
  add.operator()<u16(u64)>("cvt.u16.u64", Type::u16, Type::u64, [](u64 x) { return static_cast<u16>(x); });
  add.operator()<u16(u16)>("cvt.u32.u16", Type::u32, Type::u16, same);
  add.operator()<u32(u64)>("cvt.u32.u64", Type::u32, Type::u64, [](u64 x) { return static_cast<u32>(x); });
  add.operator()<u64(u32)>("cvt.u64.u32", Type::u64, Type::u32, [](u32 x) { return u64{x}; });
  add.operator()<u64(u16)>("cvt.u64.u16", Type::u64, Type::u16, [](u16 x) { return u64{x}; });
  add.operator()<s64(s32)>("cvt.s64.s32", Type::s64, Type::s32, [](s32 x) { return s64{x}; });

  add.operator()<float(f16)>("cvt.f32.f16", Type::f32, Type::f16, [](f16 x) { return to_float(x); });
  add.operator()<f16(float)>("cvt.rn.f16.f32", Type::f16, Type::f32,
                             [](float x) { return x != x ? f16{0x7fff} : to_f16(x); });
  // The first source is the upper half.
  to.push_back(lane_opcode<u32(float, float)>("cvt.rn.f16x2.f32", [](float upper, float lower) {
    const auto half = [](float x) { return u32{x != x ? std::uint16_t{0x7fff} : to_f16(x).bits}; };
    return half(upper) << 16 | half(lower);
  }));
  add.operator()<double(float)>("cvt.f64.f32", Type::f64, Type::f32, [](float x) { return double{x}; });
  add.operator()<float(double)>("cvt.rn.f32.f64", Type::f32, Type::f64, [](double x) { return static_cast<float>(x); });

  add.operator()<float(s16)>("cvt.rn.f32.s16", Type::f32, Type::s16, [](s16 x) { return static_cast<float>(x); });
  add.operator()<float(s32)>("cvt.rn.f32.s32", Type::f32, Type::s32, [](s32 x) { return static_cast<float>(x); });
  add.operator()<float(u32)>("cvt.rn.f32.u32", Type::f32, Type::u32, [](u32 x) { return static_cast<float>(x); });
  add.operator()<double(s32)>("cvt.rn.f64.s32", Type::f64, Type::s32, [](s32 x) { return static_cast<double>(x); });
  add.operator()<double(s64)>("cvt.rn.f64.s64", Type::f64, Type::s64, [](s64 x) { return static_cast<double>(x); });

  // .rzi: towards zero; .rmi: down; .rni: to nearest, half to even; .sat: into [0, 1], and a NaN becomes 0.
  add.operator()<s32(float)>("cvt.rzi.s32.f32", Type::s32, Type::f32,
                             [](float x) { return integer<s32>(std::trunc(x)); });
  add.operator()<s64(double)>("cvt.rzi.s64.f64", Type::s64, Type::f64,
                              [](double x) { return integer<s64>(std::trunc(x)); });
  add.operator()<float(float)>("cvt.rzi.f32.f32", Type::f32, Type::f32, [](float x) { return std::trunc(x); });
  add.operator()<float(float)>("cvt.rmi.f32.f32", Type::f32, Type::f32, [](float x) { return std::floor(x); });
  add.operator()<float(float)>("cvt.rni.f32.f32", Type::f32, Type::f32, [](float x) { return std::nearbyint(x); });
  add.operator()<double(double)>("cvt.rni.f64.f64", Type::f64, Type::f64, [](double x) { return std::nearbyint(x); });
  add.operator()<float(float)>("cvt.sat.f32.f32", Type::f32, Type::f32, [](float x) {
    return !(x > 0) ? 0.0f : x < 1 ? x : 1.0f;
  });
}

}  // namespace hayloft::simt::ptx
