#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

namespace hayloft::testing {

// Nothing of [0, limit) that was left out scores above anything taken by more than the tolerance.
inline void expect_the_best(const std::vector<double>& scores, const std::vector<std::int64_t>& taken,
                            std::int64_t limit, double tolerance) {
  const std::set<std::int64_t> set(taken.begin(), taken.end());
  double lowest_taken = std::numeric_limits<double>::infinity();
  double highest_left = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t < limit; ++t) {
    const double score = scores[static_cast<std::size_t>(t)];
    if (set.contains(t)) {
      lowest_taken = std::min(lowest_taken, score);
    } else {
      highest_left = std::max(highest_left, score);
    }
  }
  EXPECT_GE(lowest_taken, highest_left - tolerance);
}

}  // namespace hayloft::testing
