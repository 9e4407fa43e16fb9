#include "runtime/decode/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hayloft::runtime {
namespace {

TEST(Router, TheLargestLogitsAreChosenAndTiesGoToTheSmallerExpert) {
  const Experts experts{.count = 5, .used = 2};
  const float logits[] = {0, 3, 1, 3, 3,  //
                          2, 2, 2, 2, 2,  //
                          9, 0, 0, 0, 1};
  const std::vector<ExpertTokens> chosen = route(logits, 3, experts);
  ASSERT_EQ(chosen.size(), 4U);
  EXPECT_EQ(chosen[0].expert, 0);
  EXPECT_EQ(chosen[0].tokens, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(chosen[1].expert, 1);
  EXPECT_EQ(chosen[1].tokens, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(chosen[2].expert, 3);
  EXPECT_EQ(chosen[2].tokens, (std::vector<std::int32_t>{0}));
  EXPECT_EQ(chosen[3].expert, 4);
  EXPECT_EQ(chosen[3].tokens, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(chosen[1].weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(Router, WeightsAreShares) {
  Experts experts{.count = 3, .used = 2};
  const float logits[] = {1, -1, 0.5f};
  const double e0 = std::exp(1.0), e1 = std::exp(-1.0), e2 = std::exp(0.5);
  const float eps = 4 * std::numeric_limits<float>::epsilon();  // two exponentials, their sum and a quotient
  EXPECT_NEAR(route(logits, 1, experts)[0].weights[0], e0 / (e0 + e2), eps);
  EXPECT_NEAR(route(logits, 1, experts)[1].weights[0], e2 / (e0 + e2), eps);
  experts.share_of_chosen = false;
  EXPECT_NEAR(route(logits, 1, experts)[1].weights[0], e2 / (e0 + e1 + e2), eps);
}

TEST(Router, ATokenOfWhichOneLogitIsNotANumberIsNone) {
  const Experts experts{.count = 3, .used = 2};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float some[] = {nan, 1, 2}, all[] = {nan, nan, nan};
  ASSERT_EQ(route(some, 1, experts).size(), 2U);
  EXPECT_EQ(route(some, 1, experts)[0].expert, 1);
  for (const ExpertTokens& each : route(some, 1, experts)) EXPECT_TRUE(std::isnan(each.weights[0]));
  const float infinite[] = {-INFINITY, 1, 2};
  EXPECT_TRUE(std::isnan(route(infinite, 1, experts)[0].weights[0]));
  ASSERT_EQ(route(all, 1, experts).size(), 2U);
  EXPECT_TRUE(std::isnan(route(all, 1, experts)[0].weights[0]));
}

}  // namespace
}  // namespace hayloft::runtime
