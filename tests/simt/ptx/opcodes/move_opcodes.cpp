#include <chrono>

#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "mov" and "cvta".
namespace hayloft::simt::ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class T>
void add_move(std::vector<Opcode>& to, const std::string& name) {
  to.push_back(lane_opcode<T(T)>(name, [](T a) { return a; }));
}

// Two halves and the whole, the lower half first.
template <class Whole, class Half>
void unpack(Warp& warp, const Instruction& in, Mask lanes) {
  const Whole* const from = warp.lanes<Whole>(in.from[0]);
  Half* const low = warp.lanes<Half>(in.to[0]);
  Half* const high = warp.lanes<Half>(in.to[1]);
  for_each_lane(lanes, [&](unsigned lane) {
    const Whole whole = from[lane];
    low[lane] = static_cast<Half>(whole);
    high[lane] = static_cast<Half>(whole >> 8 * sizeof(Half));
  });
}

void read_clock(Warp& warp, const Instruction& in, Mask lanes) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto nanoseconds = static_cast<u64>(std::chrono::nanoseconds(now).count());
  for_each_lane(lanes, [&](unsigned lane) { warp.set_bits(in.to[0], lane, nanoseconds); });
}

}  // namespace

void add_move_opcodes(std::vector<Opcode>& to) {
  add_move<bool>(to, "mov.pred");
  for (const char* name : {"mov.b16", "mov.u16"}) add_move<u16>(to, name);
  for (const char* name : {"mov.b32", "mov.u32", "mov.f32"}) add_move<u32>(to, name);
  // Addresses mean the same in the generic space and in the global one; shared memory is never addressed generically.
  for (const char* name : {"mov.b64", "mov.u64", "mov.f64", "cvta.to.global.u64"}) add_move<u64>(to, name);
  to.push_back(lane_opcode<u32(u16, u16)>("mov.b32 pack", [](u16 low, u16 high) { return u32{high} << 16 | low; }));
  to.push_back(lane_opcode<u64(u32, u32)>("mov.b64 pack", [](u32 low, u32 high) { return u64{high} << 32 | low; }));
  to.push_back({.name = "mov.b32 unpack", .to = {Type::b16, Type::b16}, .from = {Type::b32}, .run = unpack<u32, u16>});
  to.push_back({.name = "mov.b64 unpack", .to = {Type::b32, Type::b32}, .from = {Type::b64}, .run = unpack<u64, u32>});
  to.push_back({.name = "mov.u64 %globaltimer", .to = {Type::u64}, .run = read_clock});
}

}  // namespace hayloft::simt::ptx
