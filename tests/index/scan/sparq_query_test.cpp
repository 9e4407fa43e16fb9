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
  sparq_components(q.data(), 2, 8, nullptr, 4, components.data());
  EXPECT_EQ(components, (std::vector<std::int32_t>{1, 2, 4, 5}));  // 5, 4, 4, 4; component 6 with 4 comes too late
}

TEST(SparqComponents, BySpreadAreThoseOfTheLargestProduct) {
  const std::vector<float> q{4, -3, 2, 1, 0, 0, 0, 1};
  const std::vector<float> spread{1, 1, 3, 1, 9, 1, 1, 8};
  std::vector<std::int32_t> components(3);
  sparq_components(q.data(), 1, 8, spread.data(), 3, components.data());  // 4, 3, 6, 1, 0, 0, 0, 8
  EXPECT_EQ(components, (std::vector<std::int32_t>{0, 2, 7}));
}

struct PlanesRead {
  std::vector<std::int32_t> components;
  std::vector<int> planes;
};

PlanesRead planes_of(const std::vector<float>& q, int queries, const std::vector<float>& spread, int bits) {
  const int d = static_cast<int>(spread.size());
  PlanesRead read;
  read.components.resize(static_cast<std::size_t>(plane_rank(d, bits)));
  std::vector<std::uint8_t> planes(read.components.size());
  plane_components(q.data(), queries, d, spread.data(), bits, read.components.data(), planes.data());
  read.planes.assign(planes.begin(), planes.end());
  return read;
}

TEST(PlaneComponents, GetThePlanesThatAreWorthMost) {
  // Worth 8 4 2 1, 1 .5 .25 .125, 6 3 1.5 .75, 2 1 .5 .25: the first six are 8, 6, 4, 3, 2 and the other 2.
  const PlanesRead read = planes_of({8, -1, 3, 0.5f, 0, 0, 0, 0}, 1, {1, 1, 2, 4, 1, 1, 1, 1}, 6);
  EXPECT_EQ(read.components, (std::vector<std::int32_t>{0, 2, 3, 1, 4, 5}));
  EXPECT_EQ(read.planes, (std::vector<int>{3, 2, 1, 0, 0, 0}));
}

TEST(PlaneComponents, OfEqualWorthGoToTheSmallerComponent) {
  const PlanesRead read =
      planes_of({2, 1, 1, 2, 0, 0, 0, 0}, 1, {1, 1, 1, 1, 1, 1, 1, 1}, 4);  // 2, 2, then 1 four times
  EXPECT_EQ(read.components, (std::vector<std::int32_t>{0, 1, 3, 2}));
  EXPECT_EQ(read.planes, (std::vector<int>{2, 1, 1, 0}));
}

TEST(PlaneComponents, AddUpTheGroupsMagnitudes) {
  const PlanesRead read = planes_of({1, -5, 0, 0, 0, 0, 0, 0, 6, 1, 0, 0, 0, 0, 0, 0}, 2, std::vector<float>(8, 1), 1);
  EXPECT_EQ(read.components, (std::vector<std::int32_t>{0}));  // 7 against 6
}

TEST(PlaneComponents, AllBitsAreAllPlanes) {
  const PlanesRead read = planes_of(std::vector<float>(8), 1, std::vector<float>(8), 40);
  EXPECT_EQ(read.components, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(read.planes, std::vector<int>(8, 4));
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
