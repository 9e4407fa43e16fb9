#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpu/backend.h"

namespace hayloft::test {

// Every kind of packed matrix that there is, with the name of a type of GGUF that becomes it.
struct NamedPacking {
  const char* name;
  gpu::Packing packing;
};
inline std::vector<NamedPacking> all_packings() {
  constexpr std::array<std::int8_t, 16> curve = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
  return {{"Q4_0", {.bits = 4, .zero = 8}},
          {"Q4_1", {.bits = 4, .minimum = true}},
          {"Q5_0", {.bits = 5, .zero = 16}},
          {"Q5_1", {.bits = 5, .minimum = true}},
          {"Q8_0", {.bits = 8, .zero = 128}},
          {"Q2_K", {.bits = 2, .minimum = true, .products = true}},
          {"Q3_K", {.bits = 3, .zero = 4, .products = true}},
          {"Q4_K", {.bits = 4, .minimum = true, .products = true}},
          {"Q5_K", {.bits = 5, .minimum = true, .products = true}},
          {"Q6_K", {.bits = 6, .zero = 32, .products = true}},
          {"IQ4_NL", {.bits = 4, .by_table = true, .table = curve}},
          {"IQ4_XS", {.bits = 4, .products = true, .by_table = true, .table = curve}}};
}

// A packed matrix of random codes and scales, beside the weights that it stands for.
class RandomPacked {
 public:
  RandomPacked(const gpu::Packing& packing, int rows, int cols, std::uint32_t seed) : random_(seed) {
    constexpr int height = gpu::packed_tile_rows;
    bytes.resize(packing.matrix_bytes(rows, cols));
    weights.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    magnitudes.resize(weights.size());
    for (int row = 0; row < rows; ++row) {
      fill(packing, bytes.data() + static_cast<std::size_t>(row / height) * packing.tile_bytes(cols), row % height,
           cols, static_cast<std::size_t>(row) * static_cast<std::size_t>(cols));
    }
    matrix = {bytes.data(), gpu::DType::packed, rows, cols, packing};
  }

  std::vector<std::byte> bytes;
  std::vector<float> weights;     // [rows][cols]
  std::vector<float> magnitudes;  // |scale * value| + |minimum| of each
  gpu::Matrix matrix;             // over `bytes`

 private:
  void fill(const gpu::Packing& packing, std::byte* tile, int lane, int cols, std::size_t out) {
    const int group = packing.group(), per_chunk = 32 / group;
    std::byte* at = tile;
    float factors[2] = {};  // of scales and minima
    for (int col = 0; col < cols; col += 32) {
      if (packing.products && col % 256 == 0) {
        for (int kind = 0; kind < 1 + packing.minimum; ++kind, at += 32) factors[kind] = put_half(at + 2 * lane, 0.1f);
      }
      std::uint8_t codes[32];
      for (auto& code : codes) code = static_cast<std::uint8_t>(random_() & ((1u << packing.bits) - 1));
      put_codes(packing, codes, lane, at);
      at += 64 * packing.bits;
      float numbers[2][2] = {};
      for (int kind = 0; kind < 1 + packing.minimum; ++kind) {
        for (int g = 0; g < per_chunk; ++g, at += packing.products ? 16 : 32) {
          if (packing.products) {
            const auto integer = static_cast<std::int8_t>(static_cast<int>(random_() % 256) - 128);
            std::memcpy(at + lane, &integer, 1);
            numbers[kind][g] = factors[kind] * static_cast<float>(integer);
          } else {
            numbers[kind][g] = put_half(at + 2 * lane, 1);
          }
        }
      }
      for (int i = 0; i < 32; ++i, ++out) {
        const float product = numbers[0][i / group] * static_cast<float>(packing.value(codes[i]));
        weights[out] = product + numbers[1][i / group];
        magnitudes[out] = std::abs(product) + std::abs(numbers[1][i / group]);
      }
    }
  }

  float put_half(std::byte* at, float deviation) {
    const f16 half = to_f16(deviation * normal_(random_));
    std::memcpy(at, &half, sizeof half);
    return to_float(half);
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

}  // namespace hayloft::test
