#include "gpu/cpu/packed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/support/each_target.h"

namespace hayloft {
namespace {

using gpu::Packing;

// A packed matrix of random codes and scales, beside the weights that it stands for.
struct RandomPacked {
  RandomPacked(const Packing& packing, int rows, int cols, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const int tiles = (rows + gpu::packed_tile_rows - 1) / gpu::packed_tile_rows;
    bytes.resize(packing.matrix_bytes(rows, cols));
    weights.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    std::byte* chunk = bytes.data();
    for (int tile = 0; tile < tiles; ++tile) {
      for (int col = 0; col < cols; col += packing.group, chunk += packing.chunk_bytes()) {
        for (int lane = 0; lane < gpu::packed_tile_rows && tile * gpu::packed_tile_rows + lane < rows; ++lane) {
          fill(packing, random, normal, chunk, lane,
               weights.data() + static_cast<std::size_t>(tile * gpu::packed_tile_rows + lane) * cols + col);
        }
      }
    }
    matrix = {bytes.data(), gpu::DType::packed, rows, cols, packing};
  }

  void fill(const Packing& packing, std::mt19937& random, std::normal_distribution<float>& normal, std::byte* chunk,
            int lane, float* out) {
    std::byte* const halves = chunk + 4 * packing.words() * gpu::packed_tile_rows;
    const f16 scale = to_f16(normal(random));
    const f16 minimum = to_f16(packing.minimum ? normal(random) : 0.0f);
    std::memcpy(halves + 2 * lane, &scale, 2);
    if (packing.minimum) std::memcpy(halves + 2 * (gpu::packed_tile_rows + lane), &minimum, 2);
    const int per_word = 32 / packing.bits;
    for (int w = 0; w < packing.words(); ++w) {
      const auto word = static_cast<std::uint32_t>(random());
      std::memcpy(chunk + 4 * (w * gpu::packed_tile_rows + lane), &word, 4);
      for (int i = 0; i < per_word; ++i) {
        const std::uint32_t code = word >> (i * packing.bits) & (packing.bits == 8 ? 255u : 15u);
        const int value = packing.bits == 8 ? static_cast<std::int8_t>(code) : packing.table[code];
        *out++ = to_float(scale) * static_cast<float>(value) + to_float(minimum);
      }
    }
  }

  std::vector<std::byte> bytes;
  std::vector<float> weights;
  gpu::Matrix matrix;
};

class Packed : public test::EachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, Packed, test::each_target(), test::target_name);

std::vector<Packing> all_packings() {
  constexpr std::array<std::int8_t, 16> curve = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
  std::vector<Packing> all;
  for (const int bits : {4, 8}) {
    for (const int group : {16, 32}) {
      for (const bool minimum : {false, true}) {
        Packing packing{static_cast<std::uint8_t>(bits), static_cast<std::uint8_t>(group), minimum, {}};
        if (bits == 4) packing.table = gpu::packed_identity;
        all.push_back(packing);
        if (bits == 4) all.push_back({packing.bits, packing.group, minimum, curve});
      }
    }
  }
  return all;
}

TEST_P(Packed, ColumnsAndRowsUnpackToTheWeights) {
  std::uint32_t seed = 1;
  for (const Packing& packing : all_packings()) {
    const RandomPacked w(packing, 37, 96, seed++);
    std::vector<float> row(96);
    for (int r = 0; r < 37; ++r) {
      gpu::unpack_row(w.matrix, r, row.data());
      ASSERT_EQ(std::memcmp(row.data(), w.weights.data() + r * 96, sizeof(float) * 96), 0) << r;
    }
    std::vector<float> columns(64 * 32);
    gpu::unpack_columns(w.matrix, 1, 3, 32, 96, columns.data());
    for (int r = 16; r < 37; ++r) {
      for (int c = 32; c < 96; ++c) {
        ASSERT_EQ(columns[static_cast<std::size_t>((c - 32) * 32 + r - 16)],
                  w.weights[static_cast<std::size_t>(r * 96 + c)]);
      }
    }
  }
}

// A sum of n products in f32 is off by at most n eps times the sum of their magnitudes; that of a group is multiplied
// by its scale afterwards, and scale and minimum apart make up a weight, so magnitudes are those of the parts.
TEST_P(Packed, ProductsAreThoseOfTheWeights) {
  std::uint32_t seed = 1;
  for (const Packing& packing : all_packings()) {
    for (const int tokens : {1, 2, 3, 4, 7}) {
      constexpr int rows = 37, cols = 160;
      const RandomPacked w(packing, rows, cols, seed);
      std::mt19937 random(seed++);
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<std::size_t>(tokens) * cols);
      for (float& value : x) value = normal(random);
      std::vector<float> sums(static_cast<std::size_t>(tokens) * cols / packing.group);
      gpu::sum_groups(x.data(), tokens, cols, packing.group, sums.data());
      std::vector<float> y(static_cast<std::size_t>(tokens) * rows, NAN);
      gpu::packed_matmul(x.data(), sums.data(), tokens, w.matrix, 0, 3, y.data());
      for (int t = 0; t < tokens; ++t) {
        for (int r = 0; r < rows; ++r) {
          double exact = 0, magnitude = 0;
          for (int c = 0; c < cols; ++c) {
            const double weight = w.weights[static_cast<std::size_t>(r * cols + c)];
            const double value = x[static_cast<std::size_t>(t * cols + c)];
            exact += weight * value;
            magnitude += (std::abs(weight) + 4) * std::abs(value);  // minima are standard normal: below 4, nearly all
          }
          ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + r)], exact, cols * 0x1p-24 * magnitude)
              << "bits " << int{packing.bits} << " group " << int{packing.group} << " row " << r;
        }
      }
    }
  }
}

// The same weights give the same bits, however many tokens come with a token and whichever tiles are asked for.
TEST_P(Packed, ATokensProductsDoNotDependOnTheOthers) {
  for (const Packing& packing : all_packings()) {
    const RandomPacked w(packing, 48, 64, 5);
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    std::vector<float> x(7 * 64);
    for (float& value : x) value = normal(random);
    std::vector<float> sums(7 * 64 / packing.group);
    gpu::sum_groups(x.data(), 7, 64, packing.group, sums.data());
    std::vector<float> y(7 * 48), again(48);
    gpu::packed_matmul(x.data(), sums.data(), 7, w.matrix, 0, 3, y.data());
    for (int tile = 0; tile < 3; ++tile) {
      std::vector<float> part(7 * 48);
      gpu::packed_matmul(x.data(), sums.data(), 7, w.matrix, tile, tile + 1, part.data());
      for (int t = 0; t < 7; ++t) {
        EXPECT_EQ(std::memcmp(&part[static_cast<std::size_t>(t * 48 + tile * 16)],
                              &y[static_cast<std::size_t>(t * 48 + tile * 16)], 16 * sizeof(float)),
                  0);
      }
    }
  }
}

}  // namespace
}  // namespace hayloft
