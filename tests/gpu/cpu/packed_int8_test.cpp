#include "gpu/cpu/packed_int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gpu/make_backend.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"
#include "tests/support/random_packed.h"

namespace hayloft {
namespace {

using test::all_packings;
using test::RandomPacked;
using testing::normal;

// 16 inputs as the definition has them: a scale, and codes in the order of the columns.
struct RoundedChunk {
  explicit RoundedChunk(const float* x) {
    float largest = 0;
    for (int i = 0; i < 16; ++i) largest = std::max(largest, std::abs(x[i]));
    scale = largest / 127;
    for (int i = 0; i < 16; ++i) codes[i] = static_cast<int>(std::nearbyint(x[i] * (127 / largest)));
  }
  float scale;
  int codes[16];
};

gpu::Int8Inputs round_all(const float* x, int tokens, int cols, const gpu::Packing& packing) {
  gpu::Int8Inputs inputs(tokens, cols, packing);
  gpu::round_inputs(x, 0, tokens, cols, packing, inputs);
  return inputs;
}

// A product and the sum of the magnitudes of what is added up for it, in double from the rounded inputs.
struct Int8Product {
  double exact = 0;
  double magnitude = 0;
};
Int8Product int8_product(const gpu::Matrix& w, int row, const float* x) {
  const gpu::Packing& packing = w.packing;
  const auto* const tile = static_cast<const std::byte*>(w.data) +
                           static_cast<std::size_t>(row / gpu::packed_tile_rows) * packing.tile_bytes(w.cols);
  const int lane = row % gpu::packed_tile_rows;
  Int8Product result;
  for (int begin = 0; begin < w.cols; begin += 16) {
    const RoundedChunk rounded(x + begin);
    const std::byte* const chunk = tile + packing.chunk_offset(begin / 32 * 32);
    const gpu::PackedGroup group = gpu::group_at(packing, tile, lane, begin);
    double products = 0, sum = 0;
    for (int i = 0; i < 16; ++i) {
      products += packing.value(gpu::code_at(packing, chunk, lane, begin % 32 + i)) * rounded.codes[i];
      sum += rounded.codes[i];
    }
    const double terms[] = {double{group.scale} * rounded.scale * products,
                            double{group.minimum} * rounded.scale * sum};
    for (const double term : terms) {
      result.exact += term;
      result.magnitude += std::abs(term);
    }
  }
  return result;
}

class PackedInt8 : public test::EachTarget {
 protected:
  PackedInt8() { gpu::choose_int8_instructions(); }
};
class PackedInt8OfTheBestTarget : public ::testing::Test {
 protected:
  PackedInt8OfTheBestTarget() { gpu::choose_int8_instructions(); }
};
INSTANTIATE_TEST_SUITE_P(Targets, PackedInt8, test::each_target(), test::target_name);

void expect_int8_products() {
  std::uint32_t seed = 1;
  for (const auto& [name, packing] : all_packings()) {
    for (const int tokens : {1, 2, 3, 4, 7, 13}) {
      const int rows = 37, cols = packing.products ? 512 : 160;
      const RandomPacked w(packing, rows, cols, seed);
      const std::vector<float> x = normal(static_cast<std::size_t>(tokens * cols), seed++);
      const gpu::Int8Inputs inputs = round_all(x.data(), tokens, cols, packing);
      std::vector<float> y(static_cast<std::size_t>(tokens * rows), NAN);
      gpu::packed_matmul_int8(inputs, tokens, w.matrix, 0, 3, y.data());
      // Sums of codes are whole numbers below 2^24, exact in f32. Sixteen columns give two terms at most: each is
      // rounded as a product with the scale of the inputs and with that of the weights, once where another term joins
      // it under the latter, and once for each product that is added behind it, of which there are two a group at most;
      // every step counts twice for where it is not fused.
      const double roundings = 4.0 * cols / packing.group() + 6;
      for (int t = 0; t < tokens; ++t) {
        for (int r = 0; r < rows; ++r) {
          const Int8Product expected = int8_product(w.matrix, r, x.data() + t * cols);
          ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + r)], expected.exact,
                      roundings * 0x1p-24 * expected.magnitude)
              << name << " tokens " << tokens << " row " << r;
        }
      }
    }
  }
}

TEST_P(PackedInt8, ProductsAreThoseOfTheRoundedInputs) {
  expect_int8_products();
}

// The best target may have VNNI, which no target of its own stands for.
TEST_F(PackedInt8OfTheBestTarget, ProductsAreThoseOfTheRoundedInputs) {
  expect_int8_products();
}

void expect_int8_products_as_alone() {
  constexpr int cols = 256;
  constexpr int tokens = 267;  // more than are multiplied with a tile at a time
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    const RandomPacked w(packing, 48, cols, 5);
    const std::vector<float> x = normal(tokens * cols, 6);
    gpu::Int8Inputs all(tokens, cols, packing);
    for (const auto& [begin, end] : {std::pair(8, 24), std::pair(0, 8), std::pair(24, tokens)}) {
      gpu::round_inputs(x.data(), begin, end, cols, packing, all);
    }
    std::vector<float> y(static_cast<std::size_t>(tokens) * 48);
    gpu::packed_matmul_int8(all, tokens, w.matrix, 0, 3, y.data());
    for (const int t : {0, 1, 3, 7, 8, 255, 256, 262, 266}) {
      const gpu::Int8Inputs one = round_all(x.data() + t * cols, 1, cols, packing);
      for (int tile = 0; tile < 3; ++tile) {
        std::vector<float> part(48);
        gpu::packed_matmul_int8(one, 1, w.matrix, tile, tile + 1, part.data());
        EXPECT_EQ(std::memcmp(&part[static_cast<std::size_t>(tile * 16)],
                              &y[static_cast<std::size_t>(t * 48 + tile * 16)], 16 * sizeof(float)),
                  0)
            << t;
      }
    }
  }
}

TEST_P(PackedInt8, ATokensProductsDoNotDependOnTheOthersNorOnTheTiles) {
  expect_int8_products_as_alone();
}
TEST_F(PackedInt8OfTheBestTarget, ATokensProductsDoNotDependOnTheOthersNorOnTheTiles) {
  expect_int8_products_as_alone();
}

TEST_P(PackedInt8, WhatIsNotFiniteStaysSo) {
  constexpr int cols = 64;
  for (const auto& [name, packing] : all_packings()) {
    if (packing.products) continue;
    const RandomPacked w(packing, 16, cols, 5);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = normal(cols, 6), y(16);
      x[37] = bad;
      const gpu::Int8Inputs inputs = round_all(x.data(), 1, cols, packing);
      gpu::packed_matmul_int8(inputs, 1, w.matrix, 0, 1, y.data());
      for (const float each : y) EXPECT_FALSE(std::isfinite(each)) << name << ' ' << bad;
    }
  }
}

TEST_P(PackedInt8, WhatIsTooSmallForAScaleIsZero) {
  constexpr int cols = 32;
  const RandomPacked w({.bits = 4, .zero = 8}, 16, cols, 5);
  for (const float small : {0.0f, std::numeric_limits<float>::denorm_min(), 0.9e-36f}) {
    const std::vector<float> x(cols, small);
    std::vector<float> y(16, NAN);
    const gpu::Int8Inputs inputs = round_all(x.data(), 1, cols, w.matrix.packing);
    gpu::packed_matmul_int8(inputs, 1, w.matrix, 0, 1, y.data());
    for (const float each : y) EXPECT_EQ(each, 0) << small;
  }
}

// Only a backend that was asked for them multiplies so, and only packed weights.
TEST(Int8Products, AreTheBackendsOnlyWherePackedAndAskedFor) {
  const offload::Threads threads(2), one(1);
  const auto exact = gpu::make_cpu_backend(threads);
  const auto rounded = gpu::make_cpu_backend(threads, gpu::Products::int8);
  const auto alone = gpu::make_cpu_backend(one, gpu::Products::int8);
  EXPECT_EQ(exact->products(), gpu::Products::exact);
  EXPECT_EQ(rounded->products(), gpu::Products::int8);
  constexpr int rows = 1000, cols = 256;
  const RandomPacked w({.bits = 4, .minimum = true}, rows, cols, 1);
  const gpu::Matrix plain{w.weights.data(), gpu::DType::f32, rows, cols};
  const std::vector<float> bias = normal(rows, 2);
  for (const int T : {1, 4, 100}) {
    const std::vector<float> x = normal(static_cast<std::size_t>(T) * cols, 3);
    const auto multiply = [&](gpu::Backend& backend, const gpu::Matrix& matrix) {
      std::vector<float> y(static_cast<std::size_t>(T) * rows);
      backend.matmul(x.data(), T, matrix, bias.data(), y.data(), {});
      return y;
    };
    const std::vector<float> y = multiply(*rounded, w.matrix), f32 = multiply(*exact, w.matrix);
    EXPECT_EQ(y, multiply(*alone, w.matrix));
    EXPECT_NE(y, f32);
    EXPECT_EQ(multiply(*rounded, plain), multiply(*exact, plain));
    // Each input is off by half a scale at most, and scales are a 127th of the largest input, which is below 6 here.
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < rows; ++r) {
        double magnitude = 0;
        for (int c = 0; c < cols; ++c) magnitude += std::abs(w.weights[static_cast<std::size_t>(r * cols + c)]);
        const auto at = static_cast<std::size_t>(t * rows + r);
        ASSERT_NEAR(y[at], f32[at], 0.51 * 6 / 127 * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace hayloft
