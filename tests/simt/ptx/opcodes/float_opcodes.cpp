#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/simt/ptx/opcodes/approximation.h"
#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "Floating Point Instructions": IEEE 754, with denormals unless an opcode says .ftz. Every NaN that an f32
// instruction makes is 0x7fffffff; those of f64 keep their payload.
namespace hayloft::simt::ptx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

inline float canonical(float x) {
  return x != x ? std::bit_cast<float>(u32{0x7fffffff}) : x;
}
inline double canonical(double x) {
  return x;
}

inline float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// A NaN loses to a number, and -0 is less than +0.
template <class T>
T smaller(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
T larger(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

// Towards minus infinity. What is volatile stays between the changes of the rounding mode.
float fma_down(float a, float b, float c) {
  volatile float va = a;
  volatile float vb = b;
  volatile float vc = c;
  std::fesetround(FE_DOWNWARD);
  const volatile float result = std::fma(va, vb, vc);
  std::fesetround(FE_TONEAREST);
  return result;
}

// Towards zero.
float add_to_zero(float a, float b) {
  volatile float va = a;
  volatile float vb = b;
  std::fesetround(FE_TOWARDZERO);
  const volatile float result = va + vb;
  std::fesetround(FE_TONEAREST);
  return result;
}

// About 20 bits of the mantissa: the low half of the result is zero. Denormals count as zero.
double coarse_reciprocal(double x) {
  if (std::fabs(x) < std::numeric_limits<double>::min()) x = std::copysign(0.0, x);
  return std::bit_cast<double>(std::bit_cast<u64>(1 / x) & 0xffffffff00000000u);
}

template <class T>
void add_arithmetic(std::vector<Opcode>& to, const std::string& type) {
  for (const char* rounding : {".", ".rn."}) {
    const std::string suffix = rounding + type;
    to.push_back(lane_opcode<T(T, T)>("add" + suffix, [](T a, T b) { return canonical(a + b); }));
    to.push_back(lane_opcode<T(T, T)>("sub" + suffix, [](T a, T b) { return canonical(a - b); }));
    to.push_back(lane_opcode<T(T, T)>("mul" + suffix, [](T a, T b) { return canonical(a * b); }));
  }
  to.push_back(lane_opcode<T(T, T, T)>("fma.rn." + type, [](T a, T b, T c) { return canonical(std::fma(a, b, c)); }));
  to.push_back(lane_opcode<T(T, T)>("div.rn." + type, [](T a, T b) { return canonical(a / b); }));
  to.push_back(lane_opcode<T(T)>("rcp.rn." + type, [](T a) { return canonical(1 / a); }));
  to.push_back(lane_opcode<T(T)>("sqrt.rn." + type, [](T a) { return canonical(std::sqrt(a)); }));
  to.push_back(lane_opcode<T(T, T)>("min." + type, [](T a, T b) { return smaller(a, b); }));
  to.push_back(lane_opcode<T(T, T)>("max." + type, [](T a, T b) { return larger(a, b); }));
}

}  // namespace

void add_float_opcodes(std::vector<Opcode>& to) {
  add_arithmetic<float>(to, "f32");
  add_arithmetic<double>(to, "f64");
  to.push_back(lane_opcode<float(float, float, float)>(
      "fma.rm.f32", [](float a, float b, float c) { return canonical(fma_down(a, b, c)); }));
  to.push_back(
      lane_opcode<float(float, float)>("add.rz.f32", [](float a, float b) { return canonical(add_to_zero(a, b)); }));
  // The sign alone, of a NaN too.
  to.push_back(lane_opcode<u32(u32)>("neg.f32", [](u32 a) { return a ^ 0x80000000u; }));
  to.push_back(lane_opcode<u64(u64)>("neg.f64", [](u64 a) { return a ^ u64 { 1 } << 63; }));
  to.push_back(
      lane_opcode<u32(u32, u32)>("copysign.f32", [](u32 a, u32 b) { return (a & 0x80000000u) | (b & 0x7fffffffu); }));
  to.push_back(lane_opcode<u32(u32)>("abs.f32", [](u32 a) { return a & 0x7fffffffu; }));
  to.push_back(
      lane_opcode<float(float)>("ex2.approx.f32", [](float a) { return canonical(approximately(std::exp2(a), a)); }));
  to.push_back(lane_opcode<float(float)>(
      "ex2.approx.ftz.f32", [](float a) { return canonical(flushed(approximately(std::exp2(flushed(a)), a))); }));
  to.push_back(lane_opcode<float(float)>("rcp.approx.ftz.f32",
                                         [](float a) { return canonical(flushed(approximately(1 / flushed(a), a))); }));
  to.push_back(lane_opcode<double(double)>("rcp.approx.ftz.f64", [](double a) { return coarse_reciprocal(a); }));
}

}  // namespace hayloft::simt::ptx
