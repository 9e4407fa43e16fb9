#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/half.h"

// The SIMD kernels of what stands in for positions that are not attended, dispatched at run time. Masses are f32
// [heads][stride], aligned to 64 bytes with a stride that is a multiple of 16. Nothing here allocates or throws.
namespace hayloft::index {

// A position is drawn by its priority, its mass over a random number in (0, 1). Of so many positions from a multiple of
// it on the largest priorities are kept, one for those that are equal modulo 16.
inline constexpr int draw_span_tokens = 256;
inline constexpr int draw_span_maxima = 16;

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

// Adds the masses and their squares into [heads][16] parts. maxima [spans][16], as draw_candidates() has priorities;
// null: nothing is drawn.
void note_masses(const MassTile& tile, const DrawNumbers& numbers, float* sums, float* squares, float* maxima);

// p[t] = the sum of the heads' masses in their order, priorities[t] = p[t] / u of its position, 0 where that is NaN,
// and at: the t in ascending order whose priority is above 0 and not below `least`. Returns how many these are. All
// [n].
int draw_candidates(const MassTile& tile, const DrawNumbers& numbers, float least, float* p, float* priorities,
                    std::int32_t* at);

// The keys that a line from approximate scores to logits is fitted over, of one KV head: of n positions, component by
// component, [d][line_row] each. Of columns in planes also each key's code and its range; else null.
inline constexpr int line_samples = 256;            // positions at most
inline constexpr int line_row = line_samples + 32;  // not a power of two, as in ColumnScores::stride()
struct LineKeys {
  const f16* keys = nullptr;
  const std::uint8_t* codes = nullptr;
  const f16* centres = nullptr;
  const f16* halves = nullptr;
  int n = 0;
  int d = 0;
};

// approximate[h][t] = weights[h] . key as it is read, exact[h][t] = query[h] . key, rows of line_row floats; weights
// and query f32 [heads][d]. planes [d]: of component c the first planes[c] are read, of which 0 are not looked at;
// null: keys are read as they are.
void line_logits(const LineKeys& keys, const float* weights, const float* query, int heads, const std::uint8_t* planes,
                 float* approximate, float* exact);

// out f32 [n][stride]: n rows of d values, zero past d.
void widen_values(const f16* const* rows, int n, int d, int stride, float* out);

// Set out[c] = sum_i weights[i] * values[i][c] for all of the stride, and out[i] = values[i] . y. values f32
// [n][stride], the stride a multiple of 16, zero past d.
void sum_values(const float* values, int n, int stride, const float* weights, float* out);
void dot_values(const float* values, int n, int stride, const float* y, float* out);

}  // namespace hayloft::index
