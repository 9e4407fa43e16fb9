#pragma once

#include <cstddef>

#include "gpu/backend.h"

// Products with packed weights (gpu/packed.h), on one thread each.
namespace hayloft::gpu {

// Sums of x [tokens][cols] over each group of columns, to sums [tokens][cols / group]: what minima are multiplied with.
void sum_groups(const float* x, int tokens, int cols, int group, float* sums);

// y [tokens][w.rows] = x [tokens][w.cols] W^T for the tiles [begin, end) of rows; sums as above, null without minima.
// In f32, each element's columns in the same order whatever else is asked for.
void packed_matmul(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y);

// Writes columns [begin, end), multiples of 32, of a tile's 16 rows as f32 [end - begin][stride], of which the rows are
// the first 16.
void unpack_tile(const Matrix& w, int tile, int begin, int end, float* out, std::size_t stride);

}  // namespace hayloft::gpu
