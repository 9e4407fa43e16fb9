#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gpu/packed.h"
#include "runtime/checkpoint/gguf/types.h"

namespace hayloft::runtime::gguf {

// How matrices of a quantised type lie in device memory; none for plain numbers.
//
//   4 bits, groups of 32: Q4_0, IQ4_NL, IQ4_XS, MXFP4 by their tables; Q4_1, Q4_K with minima
//   4 bits, groups of 16: Q3_K; Q2_K with minima
//   8 bits, groups of 32: Q5_0, Q8_0; Q5_1, Q5_K with minima
//   8 bits, groups of 16: Q6_K
//
// Codes are kept as they are. So are the scales and minima of types that have them in f16 (all but MXFP4 and the K and
// XS types). Those others are products that are rounded to f16, which changes a weight by at most 2^-11 of |scale *
// code| plus 2^-11 of |minimum|, or by 2^-25 of |code| plus 2^-25 where those lie below 2^-14.
std::optional<gpu::Packing> packing_of(TensorType type);

// Packs the rows of one tile (gpu/packed.h). rows: at most 16, the first byte of each; those that are missing become
// zeros. cols: a multiple of the type's block. out: packing_of(type)->tile_bytes(cols). False when a scale or minimum
// is beyond f16, which leaves out undefined.
bool pack_tile(TensorType type, std::span<const std::byte* const> rows, std::int64_t cols, std::byte* out);

}  // namespace hayloft::runtime::gguf
