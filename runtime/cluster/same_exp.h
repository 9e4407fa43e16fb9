#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hayloft::runtime::cluster {

// exp(x) to 2 units in the last place, by additions and multiplications alone, so that it has the same bits on every
// processor that a program runs on, which the library's has not: ranks that decide by it decide alike. Less than the
// smallest normal number is 0. The polynomial is Cephes' expf.
inline float same_exp(float x) {
  if (!(x > -87.3f)) return std::isnan(x) ? x : 0;
  if (x > 88.7f) return std::numeric_limits<float>::infinity();
  const float n = std::floor(x * 1.44269504f + 0.5f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, of which n times the first is exact
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const auto half = static_cast<std::int32_t>(n) / 2;  // 2^128 is none
  const auto power = [](std::int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
  return p * power(half) * power(static_cast<std::int32_t>(n) - half);
}

}  // namespace hayloft::runtime::cluster
