#include "runtime/serve/answer_audit.h"

#include <gtest/gtest.h>

#include <vector>

namespace hayloft::runtime::serve {
namespace {

TEST(HeaviestPlaces, AreWindowsThatDoNotOverlapTheHeaviestFirst) {
  std::vector<double> mass(400, 0.001);
  mass[0] = 50;  // a sink
  for (int i = 100; i < 110; ++i) mass[static_cast<std::size_t>(i)] = 1;
  for (int i = 300; i < 305; ++i) mass[static_cast<std::size_t>(i)] = 3;
  const std::vector<Quote> quotes = heaviest_places(mass, 100, 2);
  ASSERT_EQ(quotes.size(), 2u);
  EXPECT_LE(quotes[0].position, 300);
  EXPECT_GE(quotes[0].position + quotes[0].tokens, 305);
  EXPECT_NEAR(quotes[0].share, 0.15, 0.01);
  EXPECT_LE(quotes[1].position, 100);
  EXPECT_GE(quotes[1].position + quotes[1].tokens, 110);
  EXPECT_NEAR(quotes[1].share, 0.10, 0.01);
}

TEST(HeaviestPlaces, AShortTextHasNone) {
  EXPECT_TRUE(heaviest_places(std::vector<double>(20, 1.0), 20, 3).empty());
  EXPECT_TRUE(heaviest_places(std::vector<double>(200, 0.0), 1, 3).empty());
  EXPECT_TRUE(heaviest_places(std::vector<double>(200, 1.0), 200, 0).empty());
  EXPECT_EQ(heaviest_places(std::vector<double>(30, 1.0), 30, 3).size(), 1u);
}

}  // namespace
}  // namespace hayloft::runtime::serve
