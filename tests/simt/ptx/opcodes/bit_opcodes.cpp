#include <algorithm>
#include <bit>

#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "Logic and Shift Instructions", and those of the integer ones that move bits.
namespace hayloft::simt::ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

template <class T>
void add_logic(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<T(T, T)>("and." + type, [](T a, T b) { return static_cast<T>(a & b); }));
  to.push_back(lane_opcode<T(T, T)>("or." + type, [](T a, T b) { return static_cast<T>(a | b); }));
  to.push_back(lane_opcode<T(T, T)>("xor." + type, [](T a, T b) { return static_cast<T>(a ^ b); }));
  to.push_back(lane_opcode<T(T)>("not." + type, [](T a) {
    if constexpr (std::is_same_v<T, bool>)
      return !a;
    else
      return static_cast<T>(~a);
  }));
}

// Amounts past the width count as the width.
template <class T>
T left(T a, u32 by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << by);
}
template <class T>
T right(T a, u32 by) {
  constexpr u32 width = 8 * sizeof(T);
  if constexpr (std::is_signed_v<T>) return a >> std::min(by, width - 1);
  return by >= width ? T{0} : static_cast<T>(a >> by);
}

// Bits [by, by + 32) of high:low, and bits [32 - by, 64 - by).
u32 funnel_right(u32 low, u32 high, u32 by) {
  return static_cast<u32>((u64{high} << 32 | low) >> (by & 31));
}
u32 funnel_left(u32 low, u32 high, u32 by) {
  return static_cast<u32>((u64{high} << 32 | low) << (by & 31) >> 32);
}

// Each of the four low nibbles of `selector` chooses a byte of b:a for the result, or copies of that byte's sign.
u32 permute(u32 a, u32 b, u32 selector) {
  const u64 both = u64{b} << 32 | a;
  u32 result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const u32 choice = selector >> 4 * i;
    u32 byte = static_cast<u32>(both >> 8 * (choice & 7)) & 0xff;
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

// The low `length` bits of a at bit `position` of b; what would lie past its end is dropped.
u32 insert_bits(u32 a, u32 b, u32 position, u32 length) {
  position &= 0xff;
  length &= 0xff;
  if (position >= 32 || length == 0) return b;
  const u32 low = length >= 32 ? ~u32{0} : (u32{1} << length) - 1;
  return (b & ~(low << position)) | (a & low) << position;
}

}  // namespace

void add_bit_opcodes(std::vector<Opcode>& to) {
  add_logic<bool>(to, "pred");
  add_logic<u16>(to, "b16");
  add_logic<u32>(to, "b32");
  add_logic<u64>(to, "b64");
  to.push_back(lane_opcode<u32(u32, u32)>("shl.b32", [](u32 a, u32 by) { return left(a, by); }));
  to.push_back(lane_opcode<u64(u64, u32)>("shl.b64", [](u64 a, u32 by) { return left(a, by); }));
  to.push_back(lane_opcode<u16(u16, u32)>("shr.u16", [](u16 a, u32 by) { return right(a, by); }));
  to.push_back(lane_opcode<u32(u32, u32)>("shr.u32", [](u32 a, u32 by) { return right(a, by); }));
  to.push_back(lane_opcode<u64(u64, u32)>("shr.u64", [](u64 a, u32 by) { return right(a, by); }));
  to.push_back(lane_opcode<s32(s32, u32)>("shr.s32", [](s32 a, u32 by) { return right(a, by); }));
  to.push_back(lane_opcode<s64(s64, u32)>("shr.s64", [](s64 a, u32 by) { return right(a, by); }));
  to.push_back(
      lane_opcode<u32(u32, u32, u32)>("shf.r.wrap.b32", [](u32 a, u32 b, u32 by) { return funnel_right(a, b, by); }));
  to.push_back(
      lane_opcode<u32(u32, u32, u32)>("shf.l.wrap.b32", [](u32 a, u32 b, u32 by) { return funnel_left(a, b, by); }));
  to.push_back(lane_opcode<u32(u32)>("popc.b32", [](u32 a) { return static_cast<u32>(std::popcount(a)); }));
  to.push_back(lane_opcode<u32(u32, u32, u32)>("prmt.b32", [](u32 a, u32 b, u32 c) { return permute(a, b, c); }));
  to.push_back(lane_opcode<u32(u32, u32, u32, u32)>(
      "bfi.b32", [](u32 a, u32 b, u32 position, u32 length) { return insert_bits(a, b, position, length); }));
}

}  // namespace hayloft::simt::ptx
