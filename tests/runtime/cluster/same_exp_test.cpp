#include "runtime/cluster/same_exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

// The exponential by which ranks decide, beside the library's in double.
namespace hayloft::runtime::cluster {
namespace {

// Distance of neighbouring floats at a positive value.
double unit(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) - rounded;
}

TEST(SameExp, IsWithinTwoUnitsOfTheExponential) {
  for (float x = -87.25f; x < 88.7f; x += 0.00371f) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_LE(std::fabs(same_exp(x) - exact), 2 * unit(exact)) << x;
  }
  EXPECT_EQ(same_exp(0), 1);
}

TEST(SameExp, EndsInZeroAndInfinityAndKeepsNaN) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(same_exp(-infinity), 0);
  EXPECT_EQ(same_exp(-88), 0);
  EXPECT_EQ(same_exp(infinity), infinity);
  EXPECT_TRUE(std::isfinite(same_exp(88.7f)));
  EXPECT_TRUE(std::isnan(same_exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace hayloft::runtime::cluster
