#include "runtime/eval/coverage.h"

#include <gtest/gtest.h>

namespace hayloft::runtime::eval {
namespace {

TEST(Coverage, CountsPairsInTheRightOrderAndPredictionsThatAreNear) {
  Coverage coverage;
  EXPECT_FALSE(coverage.auc() || coverage.within());
  coverage.add(0.1, 0.1);
  EXPECT_FALSE(coverage.auc()) << "no large error";
  EXPECT_EQ(*coverage.within(), 1);
  coverage.add(0.4, 0.2);
  coverage.add(0.3, 0.5);
  coverage.add(0.4, 0.3);
  // Of the pairs of a large and a small error: .3 > .1, .3 < .4, .4 > .1, .4 = .4.
  EXPECT_DOUBLE_EQ(*coverage.auc(), 2.5 / 4);
  coverage.add(0.1, 0.31);
  coverage.add(0.31, 0.1);
  EXPECT_DOUBLE_EQ(*coverage.within(), 4.0 / 6);
  EXPECT_EQ(coverage.count(), 6);
}

}  // namespace
}  // namespace hayloft::runtime::eval
