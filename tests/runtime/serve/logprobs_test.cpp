#include "runtime/serve/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace hayloft::runtime::serve {
namespace {

TEST(LogprobsTest, AreThoseOfASoftmaxOverAllTokens) {
  const std::vector<float> logits{1, 3, 2, 3};
  const double sum = std::exp(1.0) + std::exp(2.0) + 2 * std::exp(3.0);
  const TokenChoice choice = choice_of(logits, 2, 3);
  EXPECT_NEAR(choice.chosen.logprob, 2 - std::log(sum), 1e-6);
  ASSERT_EQ(choice.top.size(), 3u);
  EXPECT_EQ(choice.top[0].token, 1);  // of equals the smaller id
  EXPECT_EQ(choice.top[1].token, 3);
  EXPECT_EQ(choice.top[2].token, 2);
  EXPECT_NEAR(choice.top[0].logprob, 3 - std::log(sum), 1e-6);
}

TEST(LogprobsTest, StayFiniteForLargeLogits) {
  const std::vector<float> logits{-3e4f, 3e4f};
  EXPECT_EQ(choice_of(logits, 1, 0).chosen.logprob, 0);
  EXPECT_EQ(choice_of(logits, 0, 0).chosen.logprob, -6e4f);
  EXPECT_TRUE(choice_of(logits, 0, 0).top.empty());
  EXPECT_EQ(choice_of(logits, 0, 5).top.size(), 2u);  // more than there are
}

}  // namespace
}  // namespace hayloft::runtime::serve
