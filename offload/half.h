#pragma once

#include <bit>
#include <cstdint>

namespace hayloft {

// IEEE binary16 as it lies in the store. Bulk conversion belongs to the SIMD kernels; these scalar functions are their
// oracle.
struct f16 {
  std::uint16_t bits;
  friend bool operator==(f16, f16) = default;
};

// The upper half of an f32, as checkpoints hold weights.
struct bf16 {
  std::uint16_t bits;
  friend bool operator==(bf16, bf16) = default;
};

// Exact, as every f16 and bf16 is an f32.
inline float to_float(bf16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}

inline float to_float(f16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 31u;
  const std::uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero and subnormals are exact in f32
  return sign ? -magnitude : magnitude;
}

// Rounds to nearest even; overflow becomes infinity, NaN stays NaN.
inline f16 to_f16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below the smallest normal: adding 0.5 aligns the mantissa, the FPU rounds
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace hayloft
