#pragma once

#include <algorithm>
#include <cstdint>

namespace hayloft::runtime {

// Values that are reported by their mean and their extremes; all zero without values.
struct Figure {
  std::int64_t count = 0;
  double sum = 0;
  double least = 0;
  double most = 0;

  void add(double value) {
    least = count == 0 ? value : std::min(least, value);
    most = count == 0 ? value : std::max(most, value);
    ++count;
    sum += value;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

}  // namespace hayloft::runtime
