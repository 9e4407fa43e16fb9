#pragma once

#include <cstdint>
#include <vector>

#include "gpu/backend.h"

// Products with packed weights (gpu/packed.h) in whole numbers, on one thread each: inputs are rounded to 8 bits.
namespace hayloft::gpu {

// Inputs x [tokens][cols], 16 columns at a time, as scale * code, |code| <= 127, the scale a 127th of the largest
// magnitude. Inputs that are all below 1e-36 are zeros; where one is NaN or infinite, the scale is NaN, and so are the
// products. Tokens that are multiplied together, 8 at most, lie side by side: [runs of tokens][cols / 32][tokens of the
// run], and of each so much:
struct Int8Inputs {
  Int8Inputs(int tokens, int cols, const Packing& packing);

  std::vector<std::int8_t> codes;    // [32], in the order in which the weights' codes are unpacked
  std::vector<float> scales;         // [2]
  std::vector<std::int32_t> starts;  // [2]: what the zero of the weights' codes takes off their products
  std::vector<float> sums;           // [32 / group] of the rounded inputs, for minima
};

// Rounds tokens [begin, end) of x for products with weights of the packing that `inputs` was made for, by the
// instructions that multiply at the time. Both are multiples of int8_run, or the end is that of all tokens. Thread-safe
// for different tokens.
inline constexpr int int8_run = 8;
void round_inputs(const float* x, int begin, int end, int cols, const Packing& packing, Int8Inputs& inputs);

// y [tokens][w.rows] = x W^T for the tiles [begin, end) of rows. Products of codes are whole numbers, summed without
// error over each group of columns; those sums times the scales are added up in f32, in the order of the columns. So a
// token's outputs are the same whichever tokens come with it.
void packed_matmul_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y);

// Looks anew whether VNNI may be used, which is looked up once. For tests, behind every change of Highway's target.
void choose_int8_instructions();

}  // namespace hayloft::gpu
