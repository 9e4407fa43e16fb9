#pragma once

#include <cstdint>

#include "simt/vectors.h"

namespace hayloft::simt {

// Returns sum + a . b, off by as much as tensor cores may be: some products at a time are added to an f32, and of each
// of them what the largest of these, as an f32, does not hold is cut off instead of rounded (Fasi et al., "Numerical
// behavior of NVIDIA tensor cores", 2021; an H100 has so lost products of 2^-26 of the sum).
float add_up(float sum, const double* a, const double* b, std::int64_t elements);

// Returns the same, to the bit, of numbers that are f16, and faster. `elements` is a multiple of 8.
float add_up_halves(float sum, const float* a, const float* b, std::int64_t elements);

// Adds to `sums` what a lane gets of mma.m16n8k16: `rows` are the registers of a of the four lanes that hold the lane's
// two rows, and `columns` [2][4] those of b of the lanes that hold its two columns.
void add_lane_products(float (&sums)[4], const uint4 (&rows)[4], const uint2 (&columns)[2][4]);

}  // namespace hayloft::simt
