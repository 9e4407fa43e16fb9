#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/backend.h"
#include "tests/support/cpu_cache.h"

namespace hayloft::testing {

// A random matrix of any dtype: its bytes, and the values that they stand for.
struct TypedMatrix {
  TypedMatrix(gpu::DType type, int rows, int cols, std::uint32_t seed)
      : values(normal(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols), seed)),
        shape{nullptr, type, rows, cols} {
    const auto width = static_cast<std::size_t>(gpu::bytes_of(type));
    bytes.resize(values.size() * width);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::byte* const to = bytes.data() + i * width;
      if (type == gpu::DType::f32) {
        std::memcpy(to, &values[i], width);
      } else if (type == gpu::DType::f16) {
        const f16 half = to_f16(values[i]);
        std::memcpy(to, &half, width);
        values[i] = to_float(half);
      } else {  // cut off: any bf16 will do for a weight
        const bf16 half{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16)};
        std::memcpy(to, &half, width);
        values[i] = to_float(half);
      }
    }
  }

  gpu::Matrix at(const gpu::Buffer& memory) const {
    gpu::Matrix matrix = shape;
    matrix.data = memory.as<void>();
    return matrix;
  }

  std::vector<float> values;
  std::vector<std::byte> bytes;
  gpu::Matrix shape;
};

}  // namespace hayloft::testing
