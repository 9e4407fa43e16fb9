#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/half.h"

// The SIMD kernels of what stands in for positions that are not attended, dispatched at run time. Masses are f32
// [heads][stride], aligned to 64 bytes with a stride that is a multiple of 16. Nothing here allocates or throws.
namespace hayloft::index {

inline constexpr int draw_group_tokens = 64;  // for each of which the largest rank is kept

// x[t] = exp(slope * x[t] + shift), at most e^60, for n scores, a multiple of 16.
void scores_to_masses(float* x, int n, float slope, float shift);

// The random numbers of a draw: 1 / u of the 16 positions from starts[i] on belong to masses [16 i, 16 i + 16).
struct DrawNumbers {
  std::uint64_t key = 0;
  const std::uint32_t* starts = nullptr;
};

// The masses of some query heads that share a list, n positions of each, a multiple of 64.
struct MassTile {
  const float* masses = nullptr;  // [heads][stride]
  int stride = 0;
  int heads = 0;
  int n = 0;
};

// Adds the masses and their squares into [heads][16] parts. maxima [n / 64]: the largest rank of each 64, as
// draw_ranks() has it; null: nothing is drawn.
void note_masses(const MassTile& tile, const DrawNumbers& numbers, float* sums, float* squares, float* maxima);

// p[t] = the sum of the heads' masses in their order, and ranks[t] = p[t] / u of its position, 0 where that is NaN.
void draw_ranks(const MassTile& tile, const DrawNumbers& numbers, float* p, float* ranks);

// The keys that a line from approximate scores to logits is fitted over, of one KV head: n of them, `stride` elements
// apart.
struct LineKeys {
  const f16* first = nullptr;  // [n][stride], d of each
  std::int64_t stride = 0;
  int n = 0;
  int d = 0;
};

// approximate[h][t] = weights[h] . key as it is read, exact[h][t] = query[h] . key, rows of `row` floats; weights and
// query f32 [heads][d]. planes [d]: keys are read as a store would have them that had made planes of just these keys,
// of component c the first planes[c] ones, of which 0 are not looked at; null: as they are. columns: space for
// [d][line_row(n)], aligned to 64 bytes.
constexpr int line_row(int n) {
  return (n + 15) / 16 * 16 + 32;  // not a power of two, as in ColumnScores::stride()
}
void line_logits(const LineKeys& keys, const float* weights, const float* query, int heads, const std::uint8_t* planes,
                 f16* columns, float* approximate, float* exact, int row);

// out f32 [n][stride]: n rows of d values, zero past d.
void widen_values(const f16* const* rows, int n, int d, int stride, float* out);

// Of values f32 [n][stride], d of each, the stride a multiple of 16 and what lies past d zero: out[c] = sum_i
// weights[i] * values[i][c], for all of the stride; and out[i] = values[i] . y.
void sum_values(const float* values, int n, int stride, const float* weights, float* out);
void dot_values(const float* values, int n, int stride, const float* y, float* out);

}  // namespace hayloft::index
