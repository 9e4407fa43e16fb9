#include "runtime/eval/metrics.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/runtime/eval/plain_softmax.h"

namespace hayloft::runtime::eval {
namespace {

using hayloft::testing::plain_divergence;
using hayloft::testing::plain_softmax;

std::vector<float> random_logits(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& x : logits) x = normal(random);
  return logits;
}

TEST(EvalMetrics, DraftsAreAcceptedUpToTheFirstTokenThatDiffers) {
  using Shares = std::vector<double>;
  EXPECT_EQ(accepted_shares({true, true}, 3), Shares{});
  EXPECT_EQ(accepted_shares({true, true, true}, 3), (Shares{1, 1, 1}));
  // Drafts of 3 from each of the first three steps: 2, 1 and 0 tokens.
  EXPECT_EQ(accepted_shares({true, true, false, true, true}, 3), (Shares{2.0 / 3, 1.0 / 3, 0}));
}

TEST(EvalMetrics, DivergenceAndLogLikelihoodAreThoseOfTheirDefinitions) {
  const std::vector<float> a = random_logits(500, 1), b = random_logits(500, 2);
  EXPECT_NEAR(divergence(a, b), plain_divergence(a, b), 1e-10);
  EXPECT_NEAR(negative_log_likelihood(a, 7), -std::log(plain_softmax(a)[7]), 1e-10);
  EXPECT_EQ(divergence(a, a), 0);
}

TEST(EvalMetrics, LargeLogitsDoNotOverflow) {
  const std::vector<float> a{1000, 0}, b{0, 1000};
  EXPECT_DOUBLE_EQ(divergence(a, b), 1000);
  EXPECT_DOUBLE_EQ(negative_log_likelihood(a, 1), 1000);
  EXPECT_DOUBLE_EQ(negative_log_likelihood(a, 0), 0);
}

TEST(EvalMetrics, OfEquallyLikelyTokensTheSmallerIsTaken) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
}

}  // namespace
}  // namespace hayloft::runtime::eval
