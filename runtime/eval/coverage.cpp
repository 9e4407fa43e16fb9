#include "runtime/eval/coverage.h"

#include <algorithm>

namespace hayloft::runtime::eval {

std::optional<double> Coverage::auc() const {
  std::vector<std::pair<double, double>> sorted = pairs_;
  std::sort(sorted.begin(), sorted.end());
  double large_ones = 0;
  double small_ones = 0;
  double ordered = 0;  // pairs of a small and a large one in the right order
  for (auto from = sorted.begin(); from != sorted.end();) {
    auto to = from;
    double large_here = 0;
    for (; to != sorted.end() && to->first == from->first; ++to) large_here += to->second > large ? 1 : 0;
    const double small_here = static_cast<double>(to - from) - large_here;
    ordered += large_here * (small_ones + small_here / 2);
    large_ones += large_here;
    small_ones += small_here;
    from = to;
  }
  if (large_ones == 0 || small_ones == 0) return std::nullopt;
  return ordered / (large_ones * small_ones);
}

std::optional<double> Coverage::within() const {
  if (pairs_.empty()) return std::nullopt;
  const auto near = std::ranges::count_if(pairs_, [](const auto& each) {
    return each.first <= factor * each.second && each.second <= factor * each.first;
  });
  return static_cast<double>(near) / static_cast<double>(count());
}

}  // namespace hayloft::runtime::eval
