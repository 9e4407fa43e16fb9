#include "index/scan/columns/column_kernels.h"

#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "index/scan/top_positions.h"
#include "tests/support/each_target.h"

// The pieces that a column search is made of, alone.
namespace hayloft::index {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(ColumnKernels, ExponentialsAreAsAccurateAsTheySay) {
  // One query head per argument: alone in its quantisation group, an argument is its own sum.
  constexpr int heads = 1000;
  std::vector<float> arguments(heads);
  for (int h = 0; h < heads; ++h)
    arguments[static_cast<std::size_t>(h)] = 8 - 95.0f * static_cast<float>(h) / (heads - 1);
  const auto scores = hwy::AllocateAligned<float>(heads * 64);
  std::fill_n(scores.get(), heads * 64, -infinity);
  for (int h = 0; h < heads; ++h) scores[static_cast<std::size_t>(h * 64)] = arguments[static_cast<std::size_t>(h)];
  const auto sums = hwy::AllocateAligned<float>(heads * 16);
  const std::vector<float> references(heads, 0.0f);
  std::vector<float> maxima(heads);
  TileNotes notes;
  notes.head_maxima = maxima.data();
  notes.maxima_stride = 1;
  notes.references = references.data();
  notes.sums = sums.get();
  for (std::int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    test::choose_target(targets & -targets);
    std::fill_n(sums.get(), heads * 16, 0.0f);
    take_notes(scores.get(), 64, heads, 64, notes);
    test::choose_target(0);
    for (int h = 0; h < heads; ++h) {
      const double x = arguments[static_cast<std::size_t>(h)];
      const double sum = std::accumulate(sums.get() + h * 16, sums.get() + h * 16 + 16, 0.0);
      // The other 63 stand at exp(-87) each.
      EXPECT_NEAR(sum, std::exp(x), (2e-7 + 0x1p-23 * std::abs(x)) * std::exp(x) + 63 * 1.7e-38)
          << "x " << x << " on " << hwy::TargetName(targets & -targets);
    }
  }
}

TEST(KthLargest, AgreesWithSorting) {
  std::mt19937 engine(5);
  for (const std::size_t n : {1u, 15u, 16u, 1000u, 20000u}) {
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(engine() % 500);
    std::vector<float> sorted = values;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (const std::size_t k : {std::size_t{1}, n / 100 + 1, n / 20 + 1, n / 10 + 1, n / 5 + 1, n / 3 + 1, n}) {
      EXPECT_EQ(kth_largest(values, static_cast<std::int64_t>(k)), sorted[k - 1]) << n << " values, k " << k;
    }
    EXPECT_EQ(kth_largest(values, static_cast<std::int64_t>(n) + 1), -infinity);
  }
}

TEST(KthLargest, DoesNotCountNaN) {
  std::vector<float> values(1000, std::numeric_limits<float>::quiet_NaN());
  values[10] = 3;
  values[500] = 2;
  EXPECT_EQ(kth_largest(values, 2), 2);
  EXPECT_EQ(kth_largest(values, 3), -infinity);
  for (std::size_t i = 0; i < values.size(); i += 3) values[i] = i < 500 ? -infinity : static_cast<float>(i / 2 * 2);
  for (const std::int64_t k : {100, 110, 167}) {  // by maxima of four, of four, and of two
    std::vector<float> sorted;
    std::copy_if(values.begin(), values.end(), std::back_inserter(sorted), [](float v) { return !std::isnan(v); });
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    EXPECT_EQ(kth_largest(values, k), sorted[static_cast<std::size_t>(k - 1)]) << k;
  }
}

}  // namespace
}  // namespace hayloft::index
