#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "offload/half.h"
#include "offload/store/layout.h"
#include "offload/store/quantise.h"

// Key columns in bit planes: a search reads of each component as many planes as pay for its query (after Fathom, arXiv
// 2609.17652). A quantisation group is min(256, B) consecutive tokens of one column; they share a range, whose cells of
// equal width are numbered by codes of four bits. The first p bits of a code are the cell of a range of 2^p cells, so
// that the first p planes are the best code of p bits over that range. All of it is defined by the scalar functions
// here, to the bit, in f32 arithmetic rounded to nearest even:
//
//   lo, hi = the smallest and the largest key of the group's tokens, infinity counting as 65504 and NaN as 0
//   centre = the f16 nearest to (lo + hi) / 2, +0 for -0
//   half   = the smallest f16 that is not less than max(|hi - centre|, |centre - lo|)
//   code   = floor(8 (x - centre) / half), held within -8 to 7, plus 8; 8 where half is 0
//
// and a key of which p planes are read, c being its code's first p bits, is
//
//   x^ = centre + half * shrink(p) / 2^p * (2 c + 1 - 2^p)
//
// rounded once: half * shrink / 2^p and its product with a whole number of 4 bits have fewer than 24. shrink is 3/4,
// 7/8, 1, 1: keys gather near the middle of their range, most of all in cells as wide as half of it. With four planes
// |x - x^| <= half / 16 but for what rounds. Bits of tokens that a group has not are 0.
namespace hayloft::offload {
// The range of a component over a quantisation group.
struct PlaneRange {
  f16 centre;
  f16 half;
};

// Returns the range of a group whose smallest and largest key are lo and hi, as finite() leaves them.
inline PlaneRange plane_range(float lo, float hi) {
  PlaneRange range{to_f16(0.5f * (lo + hi)), {0}};
  if (range.centre.bits == 0x8000) range.centre.bits = 0;
  const float centre = to_float(range.centre);
  const float half = std::max(std::fabs(hi - centre), std::fabs(centre - lo));
  range.half = to_f16(half);
  if (to_float(range.half) < half) ++range.half.bits;
  return range;
}

inline int plane_code(f16 x, const PlaneRange& range) {  // of a key
  if (range.half.bits == 0) return 8;
  const float t = (to_float(finite(x)) - to_float(range.centre)) / to_float(range.half);
  return static_cast<int>(std::clamp(std::floor(8 * t), -8.0f, 7.0f)) + 8;
}

// shrink(p) / 2^p.
inline constexpr float plane_step(int planes) {
  constexpr float steps[plane_count + 1] = {0, 0.375f, 0.21875f, 0.125f, 0.0625f};
  return steps[planes];
}

// The key that the first `planes` planes (1 to 4) of a code stand for.
inline float plane_key(int code, int planes, const PlaneRange& range) {
  const int level = 2 * (code >> (plane_count - planes)) + 1 - (1 << planes);
  return std::fma(to_float(range.half) * plane_step(planes), static_cast<float>(level), to_float(range.centre));
}

// Token t's code in a column of planes.
inline int code_at(const BlockLayout& layout, const std::byte* column, int t) {
  int code = 0;
  for (int plane = 0; plane < plane_count; ++plane) {
    const std::byte bits =
        column[static_cast<std::uint64_t>(plane) * layout.plane_bytes + static_cast<unsigned>(t) / 8];
    code = 2 * code + (static_cast<int>(bits) >> (t % 8) & 1);
  }
  return code;
}

// The ranges of a component in a block, one for each quantisation group.
inline const PlaneRange* plane_ranges(const BlockLayout& layout, const std::byte* block, int head, int component) {
  return reinterpret_cast<const PlaneRange*>(layout.scales(block, head, component));
}

// spread[head * d + c] += the half-widths of the ranges of component c, in their order.
void add_spread(const BlockLayout& layout, const std::byte* block, double* spread);

// One quantisation group of many columns: keys is f16 [components][256], of which the first `tokens` of each are keys;
// planes go to columns + c * column_bytes and ranges to scales + c * scale_bytes.
void fill_planes(const BlockLayout& layout, const f16* keys, int tokens, int components, std::byte* columns,
                 std::byte* scales);

}  // namespace hayloft::offload
