#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "offload/store/planes.h"

// A score is made of bit planes: in whole numbers, so that planes may be added up in any order, by any processor and
// any device, with the same result to the bit. For a query head with weights w_c (q / tau) and one quantisation group
// of tokens, of whose components c p_c planes are read, in f32 rounded to nearest even, c in the order of the list:
//
//   a_c   = w_c * (half_c * plane_step(p_c))         the product in brackets is exact
//   bound = sum of |a_c| * (2^p_c - 1)               one fused multiply-add each, from 0
//   unit  = bound / plane_units(rank), rounded up to 8 significant bits; 0 where bound is below 2^-100
//   A_c   = the integer nearest to a_c * (1 / unit), ties to even; 0 where unit is 0
//   base  = sum of w_c * centre_c                    one fused multiply-add each, from 0
//
//   score = unit * I + base, with I = sum of A_c * (2 code_c + 1 - 2^p_c) over the components,
//
// code_c being the token's first p_c bits. |I| < 2^15: bound / unit is 30720 at most, and rounding adds half of
// 2^p - 1 <= 15 for each of up to 256 components, 1920; of up to 512 components 28672 and 3840. So the sum fits 16
// bits, whatever its parts do on the way; f32 holds it and every part of it exactly, and unit * I too. What rounding A
// costs a score is a few of the sixty thousand steps that it can take. Where bound is not finite, scores are NaN.
namespace hayloft::index {

// Returns what a sum is made of at most but for rounding, where planes of so many components are read.
inline constexpr float plane_units(int rank) {
  return rank <= 256 ? 30720 : 28672;
}

// The scale of one query head in one quantisation group.
struct PlaneScale {
  float unit = 0;
  float inverse = 0;  // 1 / unit
  float base = 0;
};

// a_c; adds it to the sums.
inline float plane_term(float w, const offload::PlaneRange& range, int planes, float& bound, float& base) {
  const float a = w * (to_float(range.half) * offload::plane_step(planes));
  bound = std::fma(std::fabs(a), static_cast<float>((1 << planes) - 1), bound);
  base = std::fma(w, to_float(range.centre), base);
  return a;
}

inline PlaneScale plane_scale(float bound, float base, int rank) {
  if (bound < 0x1p-100f) return {0, 0, base};
  if (!std::isfinite(bound)) return {bound - bound, 0, base};
  const auto bits = std::bit_cast<std::uint32_t>(bound / plane_units(rank));
  const float unit = std::bit_cast<float>((bits + 0xffff) & 0xffff0000);
  return {unit, 1 / unit, base};
}

// A_c.
inline int plane_weight(float a, const PlaneScale& scale) {
  return scale.inverse == 0 ? 0 : static_cast<int>(std::nearbyint(a * scale.inverse));
}

}  // namespace hayloft::index
