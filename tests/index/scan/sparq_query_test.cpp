#include "index/scan/sparq_query.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace hayloft::index {
namespace {

TEST(SparqComponents, AreTheLargestOverTheGroupTiesToTheSmallerAscending) {
  const std::vector<float> q{1, -5, 2, 0, 4, 0, 3, 1,  //
                             1, 0,  2, 3, 0, 4, 1, -1};
  std::vector<std::int32_t> components(4);
  sparq_components(q.data(), 2, 8, 4, components.data());
  EXPECT_EQ(components, (std::vector<std::int32_t>{1, 2, 4, 5}));  // 5, 4, 4, 4; component 6 with 4 comes too late
}

TEST(SparqTemperature, IsTheShareOfTheMagnitudeThatWasChosenOrTheDimensionOrTheRank) {
  const std::vector<float> q{3, -1, 0, 2, 0, 0, 0, 2};
  const std::vector<std::int32_t> chosen{0, 3};
  EXPECT_FLOAT_EQ(sparq_temperature(q.data(), 8, chosen.data(), 2), std::sqrt(8 * 5.0f / 8));
  const std::vector<std::int32_t> nothing{2, 4};
  EXPECT_EQ(sparq_temperature(q.data(), 8, nothing.data(), 2), 1.0f);
  EXPECT_FLOAT_EQ(sparq_temperature(q.data(), 8, chosen.data(), 2, Temperature::head_dim), std::sqrt(8.0f));
  EXPECT_FLOAT_EQ(sparq_temperature(q.data(), 8, chosen.data(), 2, Temperature::rank), std::sqrt(2.0f));
}

}  // namespace
}  // namespace hayloft::index
