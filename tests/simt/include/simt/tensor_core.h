#pragma once

#include <cstdint>

#include "simt/kernel.h"

namespace hayloft::simt {

// Returns sum + a . b, off by as much as tensor cores may be: some products at a time are added to an f32, and of each
// of them what the largest of these, as an f32, does not hold is cut off instead of rounded (Fasi et al., "Numerical
// behavior of NVIDIA tensor cores", 2021; an H100 has so lost products of 2^-26 of the sum).
float add_up(float sum, const double* a, const double* b, std::int64_t elements);

// Returns the same, to the bit, of numbers that are f16, and faster. `elements` is a multiple of 8.
float add_up_halves(float sum, const float* a, const float* b, std::int64_t elements);

// Holds what a lane brings to mma.m16n8k16: its registers of a, then those of b.
struct LaneMatrices {
  unsigned a[4];
  unsigned b[2];
};

// Adds to `sums` what a lane gets of mma.m16n8k16, of the LaneMatrices [32] that the lanes of its warp brought.
void add_lane_products(float (&sums)[4], const Brought* brought, int lane);

}  // namespace hayloft::simt
