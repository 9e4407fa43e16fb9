#pragma once

#include <algorithm>
#include <cstdint>

namespace hayloft::runtime {

// Values that are reported by their mean and their extremes; all zero without values.
struct RunningStats {
  std::int64_t count = 0;
  double sum = 0;
  double min = 0;
  double max = 0;

  void add(double value) {
    min = count == 0 ? value : std::min(min, value);
    max = count == 0 ? value : std::max(max, value);
    ++count;
    sum += value;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

}  // namespace hayloft::runtime
