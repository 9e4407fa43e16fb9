#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gpu/packed.h"
#include "runtime/checkpoint/gguf/types.h"

namespace hayloft::runtime::gguf {

// Returns how matrices of a quantised type lie in device memory; none for plain numbers. Codes are kept as they are in
// as many bits, scales and minima too: f16 numbers, or products of f16 factors and integers. So a packed matrix stands
// for the numbers of the file, to the bit. MXFP4 alone, whose scales are powers of two, loses those below 2^-24; ones
// beyond f16 are refused.
std::optional<gpu::Packing> packing_of(TensorType type);

// Packs the rows of one tile (gpu/packed.h). rows: at most 16, the first byte of each; those that are missing become
// zeros. cols: a multiple of the type's block. out: packing_of(type)->tile_bytes(cols). False when a scale or minimum
// is not finite or beyond f16, which leaves out undefined.
bool pack_tile(TensorType type, std::span<const std::byte* const> rows, std::int64_t cols, std::byte* out);

}  // namespace hayloft::runtime::gguf
