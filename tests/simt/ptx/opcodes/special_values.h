#pragma once

#include <cstdint>
#include <limits>

// Bits and values that several suites of instructions name.
namespace hayloft::simt::ptx {

inline constexpr float inf = std::numeric_limits<float>::infinity();
inline constexpr std::uint64_t nan32 = 0x7fffffff;      // what f32 instructions make
inline constexpr std::uint64_t payload32 = 0xffc12345;  // a NaN from outside
inline constexpr std::uint64_t minus0 = 0x80000000;
inline constexpr std::uint64_t all32 = 0xffffffff;

}  // namespace hayloft::simt::ptx
