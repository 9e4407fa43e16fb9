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
  const std::vector<Quote> quotes = heaviest_places(mass, mass, 100, 2);
  ASSERT_EQ(quotes.size(), 2u);
  EXPECT_LE(quotes[0].position, 300);
  EXPECT_GE(quotes[0].position + quotes[0].tokens, 305);
  EXPECT_NEAR(quotes[0].share, 0.15, 0.01);
  EXPECT_LE(quotes[1].position, 100);
  EXPECT_GE(quotes[1].position + quotes[1].tokens, 110);
  EXPECT_NEAR(quotes[1].share, 0.10, 0.01);
}

TEST(HeaviestPlaces, AreRankedByWhatWasLookedAtAndToldByAllTheirMass) {
  std::vector<double> mass(400, 0.01), looked(400, 0.0);
  for (int i = 40; i < 60; ++i) mass[static_cast<std::size_t>(i)] = 2;  // where attention rests
  looked[200] = 1, mass[200] = 3;
  const std::vector<Quote> quotes = heaviest_places(looked, mass, 100, 2);
  ASSERT_EQ(quotes.size(), 1u);
  EXPECT_LE(quotes[0].position, 200);
  EXPECT_GE(quotes[0].position + quotes[0].tokens, 201);
  EXPECT_NEAR(quotes[0].share, 0.03, 0.003);
}

TEST(HeaviestPlaces, AShortTextHasNone) {
  const auto places = [](std::size_t tokens, double each, double total, int count) {
    const std::vector<double> mass(tokens, each);
    return heaviest_places(mass, mass, total, count).size();
  };
  EXPECT_EQ(places(20, 1, 20, 3), 0u);
  EXPECT_EQ(places(200, 0, 1, 3), 0u);
  EXPECT_EQ(places(200, 1, 200, 0), 0u);
  EXPECT_EQ(places(30, 1, 30, 3), 1u);
}

}  // namespace
}  // namespace hayloft::runtime::serve
