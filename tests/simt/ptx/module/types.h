#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

// The types of PTX (PTX ISA, "Fundamental types") that nvcc declares registers and memory with.
namespace hayloft::simt::ptx {

inline constexpr unsigned kLanes = 32;
using Mask = std::uint32_t;  // one bit per lane of a warp

enum class Type : std::uint8_t { pred, b8, u8, s8, b16, u16, s16, f16, b32, u32, s32, f32, b64, u64, s64, f64 };

inline constexpr std::array<std::pair<std::string_view, Type>, 16> type_names{{
    {"pred", Type::pred},
    {"b8", Type::b8},
    {"u8", Type::u8},
    {"s8", Type::s8},
    {"b16", Type::b16},
    {"u16", Type::u16},
    {"s16", Type::s16},
    {"f16", Type::f16},
    {"b32", Type::b32},
    {"u32", Type::u32},
    {"s32", Type::s32},
    {"f32", Type::f32},
    {"b64", Type::b64},
    {"u64", Type::u64},
    {"s64", Type::s64},
    {"f64", Type::f64},
}};

// In memory, and of one lane of a register. Predicates have no size in memory; 0 stands for the 32 bits that hold the
// predicate of a whole warp.
constexpr unsigned bytes(Type type) {
  if (type == Type::pred) return 0;
  if (type <= Type::s8) return 1;
  if (type <= Type::f16) return 2;
  return type <= Type::f32 ? 4 : 8;
}

constexpr bool is_signed(Type type) {
  return type == Type::s8 || type == Type::s16 || type == Type::s32 || type == Type::s64;
}

}  // namespace hayloft::simt::ptx
