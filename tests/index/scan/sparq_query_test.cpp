#include "index/scan/sparq_query.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/refusal.h"

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

// Two KV heads with two query heads each.
TEST(SparqQuery, IsItsPartsOfEachHead) {
  constexpr int heads = 2, query_heads = 4, d = 8;
  std::vector<float> q(query_heads * d);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>((i * 7 + 3) % 11) - 5;
  const offload::BlockLayout layout({1, heads, d, 64, offload::ColumnFormat::planes, offload::RowFormat::f16});
  std::vector<float> spread(heads * d);
  for (std::size_t i = 0; i < spread.size(); ++i) spread[i] = static_cast<float>((i * 5) % 7 + 1);
  offload::LayerView store;
  store.layout = &layout;
  store.spread = spread;
  for (const int bits : {0, 5, 40}) {
    RankingOptions options;
    options.rank = 3;
    options.bits = bits;
    options.order = ComponentOrder::qk;
    options.temperature = Temperature::rank;
    const SparqQuery query = sparq_query(q.data(), query_heads, heads, d, store, options);
    const int r = query.rank;
    ASSERT_EQ(r, bits == 0 ? 3 : plane_rank(d, bits));
    std::vector<float> whole(query_heads * d, -1.0f);
    query.spread_out(heads, query_heads, d, d, whole.data());
    for (int h = 0; h < query_heads; ++h) {
      const int head = h / 2;
      std::vector<std::int32_t> expected(static_cast<std::size_t>(r));
      std::vector<std::uint8_t> planes(static_cast<std::size_t>(r), 1);
      const float* const of_group = q.data() + head * 2 * d;
      if (bits > 0) {
        plane_components(of_group, 2, d, spread.data() + head * d, bits, expected.data(), planes.data());
      } else {
        sparq_components(of_group, 2, d, spread.data() + head * d, r, expected.data());
      }
      const auto used = static_cast<int>(std::count_if(planes.begin(), planes.end(), [](int p) { return p > 0; }));
      std::vector<float> row(d);
      for (int j = 0; j < used; ++j) {
        const std::int32_t c = expected[static_cast<std::size_t>(j)];
        EXPECT_EQ(query.components[static_cast<std::size_t>(head * r + j)], c);
        row[static_cast<std::size_t>(c)] =
            q[static_cast<std::size_t>(h * d + c)] /
            sparq_temperature(q.data() + h * d, d, expected.data(), used, Temperature::rank);
        EXPECT_EQ(query.weights[static_cast<std::size_t>(h * r + j)], row[static_cast<std::size_t>(c)]);
      }
      EXPECT_TRUE(std::equal(row.begin(), row.end(), whole.begin() + h * d)) << "bits " << bits << " head " << h;
    }
  }
  store.layout = nullptr;
  RankingOptions plain;
  plain.rank = 2;
  EXPECT_EQ(sparq_query(q.data(), query_heads, heads, d, store, plain).planes.size(), 0u) << "needs no store";
}

TEST(SparqQuery, OutOfRangeIsRefused) {
  const std::vector<float> q(4 * 8, 1.0f);
  const auto asked = [&](int query_heads, int kv_heads, int rank) {
    return [&q, query_heads, kv_heads, rank] { sparq_query(q.data(), query_heads, kv_heads, 8, {}, {.rank = rank}); };
  };
  EXPECT_TRUE(test::refuses(asked(3, 2, 4), {"3 query heads", "2 KV heads"}));
  EXPECT_TRUE(test::refuses(asked(0, 2, 4), {"0 query heads"}));
  EXPECT_TRUE(test::refuses(asked(4, 0, 4), {"0 KV heads"}));
  for (const int rank : {-1, 0, 9}) {
    EXPECT_TRUE(test::refuses(asked(4, 2, rank), {fmt::format("rank {} is out of range", rank), "1 to 8"}));
  }
}

}  // namespace
}  // namespace hayloft::index
