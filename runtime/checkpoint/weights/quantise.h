#pragma once

#include <cstddef>
#include <span>

#include "gpu/packed.h"

namespace hayloft::runtime {

// Numbers to packed codes of 8 bits without minima, or of 4 bits that are their own values with minima: by the largest
// magnitude of a group, or by its range. A weight is off by at most half a step, which is the largest magnitude of its
// group / 127 or the group's range / 15, and by what rounding scale and minimum to f16 adds (2^-11 of each).
gpu::Packing packing_of_8_bits();
gpu::Packing packing_of_4_bits();

// Packs `row` (a multiple of the group) as row `lane` of the tile at `tile`. False when a number is beyond the range of
// f16.
bool quantise_row(const gpu::Packing& packing, std::span<const float> row, int lane, std::byte* tile);

}  // namespace hayloft::runtime
