#include <algorithm>
#include <limits>

#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "Integer Arithmetic Instructions". Sums and products wrap.
namespace hayloft::simt::ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

// The result of a division by zero is not specified: no kernel may depend on it. The most negative number divided by -1
// wraps.
template <class T>
T quotient(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
  }
  return a / b;
}
template <class T>
T remainder(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return a % b;
}

template <class T, T (*operation)(T, T)>
void divide(Warp& warp, const Instruction& in, Mask lanes) {
  const T* const a = warp.lanes<T>(in.from[0]);
  const T* const b = warp.lanes<T>(in.from[1]);
  T* const to = warp.lanes<T>(in.to[0]);
  for_each_lane(lanes, [&](unsigned lane) {
    if (b[lane] == 0) throw Fault(lane, "division by zero");
    to[lane] = operation(a[lane], b[lane]);
  });
}

template <class T>
void add_division(std::vector<Opcode>& to, const std::string& type) {
  const std::vector<Type> two(2, type_of<T>());
  to.push_back({.name = "div." + type, .to = {type_of<T>()}, .from = two, .run = divide<T, quotient<T>>});
  to.push_back({.name = "rem." + type, .to = {type_of<T>()}, .from = two, .run = divide<T, remainder<T>>});
}

template <class T>
void add_min_max(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<T(T, T)>("min." + type, [](T a, T b) { return std::min(a, b); }));
  to.push_back(lane_opcode<T(T, T)>("max." + type, [](T a, T b) { return std::max(a, b); }));
}

// The sign says nothing of the low bits: T is unsigned.
template <class T>
void add_sums(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<T(T, T)>("add." + type, [](T a, T b) { return static_cast<T>(a + b); }));
  to.push_back(lane_opcode<T(T, T)>("sub." + type, [](T a, T b) { return static_cast<T>(a - b); }));
  to.push_back(lane_opcode<T(T, T)>("mul.lo." + type, [](T a, T b) { return static_cast<T>(u64{a} * b); }));
  to.push_back(lane_opcode<T(T, T, T)>("mad.lo." + type, [](T a, T b, T c) { return static_cast<T>(u64{a} * b + c); }));
}

// The two integers of 16 bits of a, the first in the low half, times the two low bytes of b, and c.
template <class Byte>
s32 pair_products(u32 a, u32 b, s32 c) {
  const auto first = static_cast<std::int16_t>(a & 0xffff), second = static_cast<std::int16_t>(a >> 16);
  return static_cast<s32>(s64{c} + first * static_cast<Byte>(b & 0xff) + second * static_cast<Byte>(b >> 8 & 0xff));
}
template <class Byte>
void add_pair_products(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<s32(u32, u32, s32)>("dp2a.lo.s32." + type,
                                               [](u32 a, u32 b, s32 c) { return pair_products<Byte>(a, b, c); }));
  to.push_back(lane_opcode<s32(u32, u32, s32)>("dp2a.hi.s32." + type,
                                               [](u32 a, u32 b, s32 c) { return pair_products<Byte>(a, b >> 16, c); }));
}

}  // namespace

void add_integer_opcodes(std::vector<Opcode>& to) {
  add_sums<u16>(to, "s16");
  add_sums<u32>(to, "s32");
  add_sums<u64>(to, "s64");
  to.push_back(lane_opcode<u32(u32)>("neg.s32", [](u32 a) { return 0 - a; }));
  to.push_back(lane_opcode<u64(u64)>("neg.s64", [](u64 a) { return 0 - a; }));
  to.push_back(lane_opcode<s64(s32, s32)>("mul.wide.s32", [](s32 a, s32 b) { return s64{a} * b; }));
  to.push_back(lane_opcode<u64(u32, u32)>("mul.wide.u32", [](u32 a, u32 b) { return u64{a} * b; }));
  to.push_back(
      lane_opcode<u32(u32, u32)>("mul.hi.u32", [](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }));
  to.push_back(
      lane_opcode<s32(s32, s32)>("mul.hi.s32", [](s32 a, s32 b) { return static_cast<s32>(s64{a} * b >> 32); }));
  add_pair_products<std::int8_t>(to, "s32");
  add_pair_products<std::uint8_t>(to, "u32");
  add_min_max<s32>(to, "s32");
  add_min_max<u32>(to, "u32");
  add_min_max<s64>(to, "s64");
  add_min_max<u64>(to, "u64");
  add_division<s32>(to, "s32");
  add_division<u32>(to, "u32");
  add_division<s64>(to, "s64");
  add_division<u64>(to, "u64");
}

}  // namespace hayloft::simt::ptx
