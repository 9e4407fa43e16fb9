#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "offload/half.h"

// Loops over the components of rows, in steps that vectors can take: the order of additions is the same everywhere.
namespace hayloft::runtime {

// f32 of n finite f16 numbers.
inline void widen_lanes(const f16* from, std::size_t n, float* to) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = from[i].bits;
    const float magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
    to[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (bits & 0x8000u) << 16);
  }
}

// x . y, in eight sums.
inline float dot_lanes(const float* x, const float* y, std::size_t n) {
  std::array<float, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= n; i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  float sum = 0;
  for (const float each : sums) sum += each;
  for (; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace hayloft::runtime
