#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "offload/half.h"
#include "offload/store/layout.h"

// Integer key columns. A quantisation group is min(64, B) consecutive tokens of one column that share a scale; Q is the
// largest level, 127 or 7. What a group becomes is defined by the scalar functions here, to the bit, so that every
// processor and every device writes the same block:
//
//   m     = the largest magnitude of the group, infinity counting as 65504 and NaN as 0
//   scale = the smallest f16 that is not less than f32(m) / Q, an f32 division rounded to nearest even
//   level = the integer nearest to f32(x) / f32(scale), an f32 division rounded to nearest even and then a tie to even;
//           0 where the scale is 0; x with the same meaning of infinity and NaN as in m
//
// In CUDA: scale = __float2half_ru(__fdiv_rn(m, Q)), level = __float2int_rn(__fdiv_rn(x, scale)). No level exceeds Q,
// without clamping: m and scale have 11 significant bits, so m / Q is either a multiple of that precision or so far
// from one that rounding the quotient to f32 does not cross it; hence scale >= m / Q and |x| / scale <= Q. By the same
// argument the level is x / scale rounded once, exactly. So with x^ = level * scale, for finite x,
//
//   |x - x^| <= scale / 2   and   scale <= (1 + 2^-10) m / Q, or 2^-24 more where that is subnormal.
//
// Subnormal scales are ordinary ones, with fewer bits; a group of nothing but zeros has scale +0. Negative zero is
// level 0.
namespace hayloft::offload {

inline constexpr int largest_level(ColumnFormat format) {  // Q of the definition
  return traits_of(format).largest_level;
}

// Returns what is quantised in place of x: the largest finite value for infinity, +0 for NaN.
inline f16 finite(f16 x) {
  const int magnitude = x.bits & 0x7fff;
  if (magnitude > 0x7c00) return {0};
  if (magnitude == 0x7c00) return {static_cast<std::uint16_t>((x.bits & 0x8000) | 0x7bff)};
  return x;
}

// The scale of a group whose largest magnitude is m, finite and not negative.
inline f16 scale_for(ColumnFormat format, f16 m) {
  const float quotient = to_float(m) / static_cast<float>(largest_level(format));
  f16 scale = to_f16(quotient);
  if (to_float(scale) < quotient) ++scale.bits;
  return scale;
}

inline int quantise(f16 x, f16 scale) {  // the level
  if (scale.bits == 0) return 0;
  return static_cast<int>(std::nearbyint(to_float(finite(x)) / to_float(scale)));
}

// The level of token t of a column of an integer format.
inline int level_at(ColumnFormat format, const std::byte* column, int t) {
  if (bits_of(format) == 8) return static_cast<std::int8_t>(column[t]);
  const int nibble = static_cast<int>(column[t / 2]) >> (t % 2 * 4) & 15;
  return (nibble ^ 8) - 8;
}

// One group of many columns: tile is f16 [components][64], of which the first tokens_per_scale of each are
// quantised to columns + c * column_bytes and scales + c * scale_bytes.
void quantise_group(const BlockLayout& layout, const f16* tile, int components, std::byte* columns, std::byte* scales);

}  // namespace hayloft::offload
