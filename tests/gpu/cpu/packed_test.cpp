#include "gpu/cpu/packed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/cpu/panels.h"
#include "gpu/table_row.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"
#include "tests/support/random_packed.h"

namespace hayloft {
namespace {

using test::all_packings;
using test::RandomPacked;
using testing::normal;

class Packed : public test::EachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, Packed, test::each_target(), test::target_name);

TEST_P(Packed, ColumnsAndRowsUnpackToTheWeights) {
  std::uint32_t seed = 1;
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    constexpr int cols = 512;
    const RandomPacked w(packing, 37, cols, seed++);
    std::vector<float> row(cols);
    for (int r = 0; r < 37; ++r) {
      gpu::read_row(w.matrix, r, row.data());
      for (int c = 0; c < cols; ++c) {
        ASSERT_EQ(row[static_cast<std::size_t>(c)], w.weights[static_cast<std::size_t>(r * cols + c)]) << r << ' ' << c;
      }
    }
    for (const int begin : {0, 32, 224, 256}) {
      std::vector<float> columns(static_cast<std::size_t>(cols - begin) * 32);
      for (const int tile : {1, 2}) gpu::unpack_tile(w.matrix, tile, begin, cols, columns.data() + 16 * (tile - 1), 32);
      for (int r = 16; r < 37; ++r) {
        for (int c = begin; c < cols; ++c) {
          ASSERT_EQ(columns[static_cast<std::size_t>((c - begin) * 32 + r - 16)],
                    w.weights[static_cast<std::size_t>(r * cols + c)])
              << r << ' ' << c;
        }
      }
    }
  }
}

// Expects y [tokens][rows] to be the products of x. A sum of n products in f32 is off by at most n eps times the sum of
// their magnitudes; that of a group is multiplied by its scale afterwards, and scale and minimum apart make up a
// weight, so magnitudes are those of the parts.
void expect_products(const RandomPacked& w, const std::vector<float>& x, int tokens, const std::vector<float>& y) {
  const int rows = w.matrix.rows, cols = w.matrix.cols;
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < rows; ++r) {
      double exact = 0, magnitude = 0;
      for (int c = 0; c < cols; ++c) {
        const double value = x[static_cast<std::size_t>(t * cols + c)];
        exact += w.weights[static_cast<std::size_t>(r * cols + c)] * value;
        magnitude += w.magnitudes[static_cast<std::size_t>(r * cols + c)] * std::abs(value);
      }
      ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + r)], exact, cols * 0x1p-24 * magnitude)
          << "tokens " << tokens << " token " << t << " row " << r;
    }
  }
}

TEST_P(Packed, ProductsAreThoseOfTheWeights) {
  std::uint32_t seed = 1;
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    for (const int tokens : {1, 2, 3, 4, 7, 9}) {
      const int rows = 37, cols = packing.products ? 512 : 160;
      const RandomPacked w(packing, rows, cols, seed);
      const std::vector<float> x = normal(static_cast<std::size_t>(tokens * cols), seed++);
      std::vector<float> sums(static_cast<std::size_t>(tokens * cols / packing.group()));
      gpu::sum_groups(x.data(), tokens, cols, packing.group(), sums.data());
      std::vector<float> y(static_cast<std::size_t>(tokens * rows), NAN);
      gpu::packed_matmul(x.data(), sums.data(), tokens, w.matrix, 0, 3, y.data());
      expect_products(w, x, tokens, y);
    }
  }
}

// Rows of 37 and 149 leave a panel of every width partly empty, and 768 columns are summed in two parts.
TEST_P(Packed, ProductsByPanelsAreThoseOfTheWeights) {
  std::uint32_t seed = 1;
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    for (const int rows : {37, 149}) {
      const int tokens = 29, cols = 768;
      const RandomPacked w(packing, rows, cols, seed);
      const std::vector<float> x = normal(static_cast<std::size_t>(tokens * cols), seed++);
      std::vector<float> y(static_cast<std::size_t>(tokens * rows), NAN);
      for (int row = 0; row < rows; row += gpu::kPanelRows) {
        gpu::panel_matmul(x.data(), w.matrix, 0, tokens, row, std::min(row + gpu::kPanelRows, rows), y.data());
      }
      expect_products(w, x, tokens, y);
    }
  }
}

// The same weights give the same bits, however many tokens come with a token and whichever tiles are asked for.
TEST_P(Packed, ATokensProductsDoNotDependOnTheOthers) {
  constexpr int cols = 512, tokens = 21;  // many: codes are taken apart once for all
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    const RandomPacked w(packing, 48, cols, 5);
    const std::vector<float> x = normal(tokens * cols, 6);
    const int groups = cols / packing.group();
    std::vector<float> sums(static_cast<std::size_t>(tokens * groups));
    gpu::sum_groups(x.data(), tokens, cols, packing.group(), sums.data());
    std::vector<float> y(tokens * 48);
    gpu::packed_matmul(x.data(), sums.data(), tokens, w.matrix, 0, 3, y.data());
    for (int tile = 0; tile < 3; ++tile) {
      for (int t = 0; t < tokens; ++t) {
        std::vector<float> part(48);
        gpu::packed_matmul(x.data() + t * cols, sums.data() + t * groups, 1, w.matrix, tile, tile + 1, part.data());
        EXPECT_EQ(std::memcmp(&part[static_cast<std::size_t>(tile * 16)],
                              &y[static_cast<std::size_t>(t * 48 + tile * 16)], 16 * sizeof(float)),
                  0)
            << "token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace hayloft
