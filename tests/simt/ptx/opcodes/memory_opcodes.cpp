#include <algorithm>
#include <cstring>

#include "tests/simt/ptx/address_spaces.h"
#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "ld", "st", "atom", "membar" and "cp.async". The registers of ld and st may be wider than what is in memory,
// which is then extended by the sign of its type, or cut off.
namespace hayloft::simt::ptx {
namespace {

using Access = AddressSpaces::Access;

std::uint64_t address_of(Warp& warp, const Instruction& in, unsigned lane) {
  const std::uint64_t address = warp.bits(in.base, lane) + static_cast<std::uint64_t>(in.offset);
  return in.base.bytes == 4 ? static_cast<std::uint32_t>(address) : address;
}

// T is as wide as what is in memory.
template <class T>
void load(Warp& warp, const Instruction& in, Mask lanes) {
  const unsigned count = in.to.count;
  for_each_lane(lanes, [&](unsigned lane) {
    const std::byte* const from =
        warp.memory.at(in.opcode->space, address_of(warp, in, lane), count * sizeof(T), Access::read, warp, lane);
    for (unsigned i = 0; i < count; ++i) {
      T x;
      std::memcpy(&x, from + i * sizeof(T), sizeof(T));
      if (in.to[i].bytes == sizeof(T)) {
        warp.lanes<T>(in.to[i])[lane] = x;
      } else {
        warp.set_bits(in.to[i], lane, static_cast<std::uint64_t>(static_cast<std::int64_t>(x)));
      }
    }
  });
}

template <class T>
void store(Warp& warp, const Instruction& in, Mask lanes) {
  const unsigned count = in.from.count;
  for_each_lane(lanes, [&](unsigned lane) {
    std::byte* const to =
        warp.memory.at(in.opcode->space, address_of(warp, in, lane), count * sizeof(T), Access::write, warp, lane);
    for (unsigned i = 0; i < count; ++i) {
      const T x = static_cast<T>(warp.bits(in.from[i], lane));
      std::memcpy(to + i * sizeof(T), &x, sizeof(T));
    }
  });
}

template <class Function, class T>
void atomic(Warp& warp, const Instruction& in, Mask lanes) {
  for_each_lane(lanes, [&](unsigned lane) {
    std::byte* const at =
        warp.memory.at(in.opcode->space, address_of(warp, in, lane), sizeof(T), Access::atomic, warp, lane);
    T before;
    std::memcpy(&before, at, sizeof(T));
    const T after = Function{}(before, warp.lanes<T>(in.from[0])[lane]);
    std::memcpy(at, &after, sizeof(T));
    warp.lanes<T>(in.to[0])[lane] = before;
  });
}

void fence(Warp& warp, const Instruction&, Mask lanes) {
  for_each_lane(lanes, [&](unsigned lane) { warp.memory.fence(warp, lane); });
}

// Copies 16 bytes, which lie there when the thread has waited for them; until then nobody knows what does.
constexpr unsigned kCopyBytes = 16;

void begin_copy(Warp& warp, const Instruction& in, Mask lanes) {
  for_each_lane(lanes, [&](unsigned lane) {
    if (warp.bits(in.from[1], lane) != kCopyBytes) throw Fault(lane, "a copy of other than 16 bytes");
    Warp::Copy copy{address_of(warp, in, lane), {}};
    const std::byte* const from =
        warp.memory.at(Space::global, warp.bits(in.from[0], lane), kCopyBytes, Access::read, warp, lane);
    std::memcpy(copy.data.data(), from, kCopyBytes);
    std::memset(warp.memory.at(Space::shared, copy.to, kCopyBytes, Access::write, warp, lane), 0xff, kCopyBytes);
    warp.copies[lane].push_back(copy);
  });
}

void end_copies(Warp& warp, const Instruction&, Mask lanes) {
  for_each_lane(lanes, [&](unsigned lane) {
    for (const Warp::Copy& copy : warp.copies[lane]) {
      std::memcpy(warp.memory.at(Space::shared, copy.to, kCopyBytes, Access::arrival, warp, lane), copy.data.data(),
                  kCopyBytes);
    }
    warp.copies[lane].clear();
  });
}

struct Element {
  Type type;
  const char* name;
  void (*load)(Warp&, const Instruction&, Mask);
  void (*store)(Warp&, const Instruction&, Mask);
};
template <class T>
constexpr Element element(Type type, const char* name) {
  return {type, name, load<T>, store<std::make_unsigned_t<T>>};
}
constexpr Element elements[] = {
    element<std::uint8_t>(Type::u8, "u8"),    element<std::int8_t>(Type::s8, "s8"),
    element<std::uint16_t>(Type::u16, "u16"), element<std::int16_t>(Type::s16, "s16"),
    element<std::uint16_t>(Type::b16, "b16"), element<std::uint32_t>(Type::u32, "u32"),
    element<std::int32_t>(Type::s32, "s32"),  element<std::uint32_t>(Type::b32, "b32"),
    element<std::uint32_t>(Type::f32, "f32"), element<std::uint64_t>(Type::u64, "u64"),
    element<std::int64_t>(Type::s64, "s64"),  element<std::uint64_t>(Type::b64, "b64"),
    element<std::uint64_t>(Type::f64, "f64"),
};

struct Prefix {
  const char* text;
  Space space;
};

template <class T, class Function>
void add_atomic(std::vector<Opcode>& to, const std::string& operation, Type type, Function) {
  for (const Prefix& prefix : {Prefix{"atom.global.", Space::global}, Prefix{"atom.shared.", Space::shared}}) {
    to.push_back({.name = prefix.text + operation,
                  .form = Form::atomic,
                  .to = {type},
                  .from = {type},
                  .space = prefix.space,
                  .run = atomic<Function, T>});
  }
}

}  // namespace

void add_memory_opcodes(std::vector<Opcode>& to) {
  constexpr Prefix loads[] = {{"ld.param", Space::param},
                              {"ld.global", Space::global},
                              {"ld.global.nc", Space::global},
                              {"ld.global.L1::no_allocate", Space::global},
                              {"ld.volatile.global", Space::global},
                              {"ld.shared", Space::shared},
                              {"ld", Space::generic}};
  constexpr Prefix stores[] = {{"st.global", Space::global}, {"st.shared", Space::shared}, {"st", Space::generic}};
  for (const Element& element : elements) {
    for (const unsigned count : {1u, 2u, 4u}) {
      if (count * bytes(element.type) > 16) continue;
      const std::string suffix = (count == 1 ? "." : count == 2 ? ".v2." : ".v4.") + std::string(element.name);
      const std::vector<Type> values(count, element.type);
      for (const Prefix& prefix : loads) {
        to.push_back({.name = prefix.text + suffix,
                      .form = Form::load,
                      .to = values,
                      .space = prefix.space,
                      .any_width = true,
                      .run = element.load});
      }
      for (const Prefix& prefix : stores) {
        to.push_back({.name = prefix.text + suffix,
                      .form = Form::store,
                      .from = values,
                      .space = prefix.space,
                      .any_width = true,
                      .run = element.store});
      }
    }
  }
  to.push_back({.name = "cp.async.cg.shared.global",
                .form = Form::copy,
                .from = {Type::u64, Type::u32},
                .space = Space::shared,
                .run = begin_copy});
  to.push_back({.name = "cp.async.wait_all", .run = end_copies});
  to.push_back({.name = "membar.gl", .run = fence});
  using u32 = std::uint32_t;
  using s32 = std::int32_t;
  add_atomic<u32>(to, "add.u32", Type::u32, [](u32 a, u32 b) { return a + b; });
  add_atomic<std::uint64_t>(to, "add.u64", Type::u64, [](std::uint64_t a, std::uint64_t b) { return a + b; });
  add_atomic<s32>(to, "min.s32", Type::s32, [](s32 a, s32 b) { return std::min(a, b); });
  add_atomic<u32>(to, "min.u32", Type::u32, [](u32 a, u32 b) { return std::min(a, b); });
}

}  // namespace hayloft::simt::ptx
