#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "offload/half.h"
#include "offload/store/layout.h"
#include "offload/store/planes.h"

// Integer rows. What is attended are f16 values again: those that a row's levels stand for. Keys have components whose
// values lie far from zero, or far apart, for all tokens alike, values do not (as KIVI found, arXiv 2402.02750): so
// keys are brought to a common scale component by component before levels are taken. A range is that of min(1024, B)
// consecutive tokens of one component of K; a scale is that of 64 (int8) or 32 (int4) consecutive elements of K or V of
// one token, the last of which may be fewer. n is 128 or 8. All of it is defined by the scalar functions here, to the
// bit, in f32 arithmetic rounded to nearest even, infinity counting as 65504 and NaN as 0:
//
//   lo, hi = the smallest and the largest key of the range's tokens
//   centre = as plane_range() has it of lo and hi: the f16 nearest to the middle
//   width  = the power of two from 2^-14 to 2^15 nearest above plane_range()'s half, or the half itself if it is one
//   x'     = (x - centre) / width of a key, x of a value
//   m      = the x' of the group that is largest in magnitude, of two the positive one
//   scale  = the f16 nearest to -m / n, +0 for -0
//   level  = the integer nearest to x' / scale, ties to even, held within -n to n - 1; 0 where the scale is 0
//
// and what the level stands for is
//
//   x^ = the f16 nearest to level * scale * width + centre of a key, to level * scale of a value,
//
// rounded twice of a key, once of a value: the products have at most 19 significant bits. But for that rounding, and
// for scales that are subnormal, |x' - x'^| <= |scale| (1 + n 2^-11), and half of that away from the end of the range
// that m is not at.
//
// A row is d levels of K and d of V, in two's complement, a byte each or half a byte (element 2i in the low nibble of
// byte i); then the f16 scales of K and those of V; then zeros up to a multiple of 8 bytes.
namespace hayloft::offload {

// The range of one component of K over the tokens that share it.
struct ChannelRange {
  f16 centre;
  f16 width;
};

// Returns the range of keys between lo and hi, as finite() leaves them.
inline ChannelRange channel_range(float lo, float hi) {
  const PlaneRange range = plane_range(lo, hi);
  const int exponent = (range.half.bits >> 10) + ((range.half.bits & 0x3ff) != 0 ? 1 : 0);
  return {range.centre, {static_cast<std::uint16_t>(std::clamp(exponent, 1, 30) << 10)}};
}

// n of the definition.
inline constexpr int levels_below_zero(RowFormat format) {
  return format == RowFormat::int8 ? 128 : 8;
}

// Returns the scale of a group whose smallest and largest x' are lo and hi.
inline f16 row_scale(RowFormat format, float lo, float hi) {
  const f16 scale = to_f16((hi >= -lo ? hi : lo) * (-1.0f / static_cast<float>(levels_below_zero(format))));
  return scale.bits == 0x8000 ? f16{0} : scale;
}

inline int row_level(RowFormat format, float x, f16 scale) {  // of x'
  if (scale.bits == 0) return 0;
  const auto n = static_cast<float>(levels_below_zero(format));
  return static_cast<int>(std::clamp(std::nearbyint(x / to_float(scale)), -n, n - 1));
}

inline f16 key_of_level(int level, f16 scale, const ChannelRange& range) {  // x^
  const float x = static_cast<float>(level) * to_float(scale) * to_float(range.width);
  return to_f16(x + to_float(range.centre));
}

inline f16 value_of_level(int level, f16 scale) {  // x^
  return to_f16(static_cast<float>(level) * to_float(scale));
}

// Level i of a row, K and V counted through; levels lie as those of integer columns do.
inline int level_at(RowFormat format, const std::byte* row, int i) {
  return level_at(format == RowFormat::int8 ? ColumnFormat::int8 : ColumnFormat::int4, row, i);
}

// The scales of K in an integer row, which those of V follow.
inline std::uint64_t row_scales_offset(const BlockLayout& layout) {
  return static_cast<std::uint64_t>(2 * layout.head_dim) * static_cast<unsigned>(bits_of(layout.row_format)) / 8;
}
inline int key_scales(const BlockLayout& layout) {  // how many
  const int group = elements_per_scale(layout.row_format);
  return (layout.head_dim + group - 1) / group;
}

// The ranges [d] of the keys at `slot` of a block of integer rows.
inline const ChannelRange* channel_ranges(const BlockLayout& layout, const std::byte* block, int head, int slot) {
  const auto* const all = reinterpret_cast<const ChannelRange*>(
      block + static_cast<std::uint64_t>(head) * layout.head_bytes + layout.ranges_offset);
  return all + static_cast<std::int64_t>(slot / tokens_per_range(layout.block_tokens)) * layout.head_dim;
}

// Row `slot` of a block of f16 rows.
inline const f16* f16_row(const BlockLayout& layout, const std::byte* block, int head, int slot) {
  return reinterpret_cast<const f16*>(layout.row_data(block, head)) + std::int64_t{slot} * 2 * layout.head_dim;
}

// Writes the rows and ranges of one head: f16 [tokens][2 d], `stride` elements from token to token, of an integer
// format. Ranges are those of the tokens given. Thread-safe for different heads.
void fill_rows(const BlockLayout& layout, std::byte* block, int head, const f16* rows, std::int64_t stride, int tokens);

// Reads n integer rows of one head, from `slot` on, as the numbers that they stand for, f16 [n][2 d].
void read_rows(const BlockLayout& layout, const std::byte* block, int head, int slot, int n, f16* out);
// K of them alone, the places of V stay as they are.
void read_keys(const BlockLayout& layout, const std::byte* block, int head, int slot, int n, f16* out);

}  // namespace hayloft::offload
