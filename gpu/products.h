#pragma once

#include <cstdint>

namespace hayloft::gpu {

// Says how inputs meet packed weights: as they are, in f32; or rounded to 8 bits, 16 of them to a scale, in whole
// numbers. Matrices that are not packed take them as they are.
enum class Products : std::uint8_t { exact, int8 };
inline const char* name(Products products) {  // as --products takes it
  return products == Products::int8 ? "int8" : "exact";
}

}  // namespace hayloft::gpu
