#pragma once

#include <cstdint>

#include "gpu/backend.h"

// Products with packed weights (gpu/packed.h), on one thread each.
namespace hayloft::gpu {

// Sums of x [tokens][cols] over each group of columns, to sums [tokens][cols / group]: what minima are multiplied with.
void sum_groups(const float* x, int tokens, int cols, int group, float* sums);

// y [tokens][w.rows] = x [tokens][w.cols] W^T for the tiles [begin, end) of rows; sums as above, null without minima.
// In f32, each element's columns in the same order whatever else is asked for.
void packed_matmul(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y);

// Columns [begin, end) of the tiles [first, last), multiples of 32, as f32 [end - begin][16 (last - first)]:
// column by column, so that the tiles' rows lie side by side.
void unpack_columns(const Matrix& w, int first, int last, int begin, int end, float* out);

}  // namespace hayloft::gpu
