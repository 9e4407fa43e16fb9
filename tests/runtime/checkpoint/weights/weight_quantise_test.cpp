#include "runtime/checkpoint/weights/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gpu/table_row.h"

namespace hayloft::runtime {
namespace {

constexpr int cols = 64;

// Row `lane` of a tile whose only row that is.
std::vector<float> there_and_back(const gpu::Packing& packing, const std::vector<float>& row, int lane, bool* fits) {
  std::vector<std::byte> tile(packing.tile_bytes(cols));
  *fits = quantise_row(packing, row, lane, tile.data());
  std::vector<float> back(row.size());
  gpu::read_row({tile.data(), gpu::DType::packed, 16, cols, packing}, lane, back.data());
  return back;
}

TEST(WeightQuantise, WeightsAreWithinHalfAStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const gpu::Packing& packing : {packing_of_8_bits(), packing_of_4_bits()}) {
    for (int lane = 0; lane < 16; ++lane) {
      std::vector<float> row(cols);
      for (float& x : row) x = normal(random) * std::exp(normal(random));
      bool fits = false;
      const std::vector<float> back = there_and_back(packing, row, lane, &fits);
      ASSERT_TRUE(fits);
      for (int begin = 0; begin < cols; begin += packing.group()) {
        const auto [least, most] = std::minmax_element(row.begin() + begin, row.begin() + begin + packing.group());
        const float largest = std::max(std::abs(*least), std::abs(*most));
        const float step = packing.bits == 8 ? largest / 127 : (*most - *least) / 15;
        // Rounded to f16, the scale is off by 2^-11 of itself at up to 127 or 15 steps, the minimum by 2^-11 of itself.
        const float bound = step / 2 + step * (packing.bits == 8 ? 127 : 15) * 0x1p-10f + largest * 0x1p-10f;
        for (int i = begin; i < begin + packing.group(); ++i) {
          ASSERT_NEAR(back[static_cast<std::size_t>(i)], row[static_cast<std::size_t>(i)], bound);
        }
      }
    }
  }
}

TEST(WeightQuantise, EqualNumbersAndZerosStay) {
  for (const gpu::Packing& packing : {packing_of_8_bits(), packing_of_4_bits()}) {
    bool fits = false;
    EXPECT_EQ(there_and_back(packing, std::vector<float>(cols, 0.0f), 3, &fits), std::vector<float>(cols, 0.0f));
    EXPECT_TRUE(fits);
    for (const float x : there_and_back(packing, std::vector<float>(cols, -2.0f), 3, &fits)) {
      EXPECT_NEAR(x, -2.0f, 2.0f * 0x1p-10f);
    }
  }
}

TEST(WeightQuantise, NumbersBeyondF16AreReported) {
  std::vector<float> row(cols, 1.0f);
  row[40] = 1e8f;
  for (const gpu::Packing& packing : {packing_of_8_bits(), packing_of_4_bits()}) {
    bool fits = true;
    there_and_back(packing, row, 0, &fits);
    EXPECT_FALSE(fits);
  }
}

}  // namespace
}  // namespace hayloft::runtime
