#pragma once

#include <span>

namespace hayloft::runtime::eval {

// The interval in which the truth lies with a confidence of 95%.
struct Interval {
  double low = 0;
  double high = 0;
};

// Returns the interval of a share of n samples each of which is either right or wrong: Wilson's (J. Am. Stat. Assoc.
// 22, 1927). n > 0.
Interval wilson_interval(double share, int n);

// Returns the interval of the mean of such values: percentiles of the means of 2,000 draws of as many values with
// replacement (Efron's bootstrap), drawn from a fixed seed, so that the same values have the same interval. Both ends
// are the value where there is one. Not empty.
Interval bootstrap_interval(std::span<const double> values);

// The one of the two that fits shares of samples: Wilson's where each is 0 or 1.
Interval share_interval(std::span<const double> shares);

}  // namespace hayloft::runtime::eval
