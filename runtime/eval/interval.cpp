#include "runtime/eval/interval.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace hayloft::runtime::eval {

Interval wilson_interval(double share, int n) {
  constexpr double z = 1.959964;  // of a normal distribution's 97.5%
  const double scale = 1 + z * z / n;
  const double middle = share + z * z / (2.0 * n);
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4.0 * n * n));
  return {std::clamp((middle - half) / scale, 0.0, share), std::clamp((middle + half) / scale, share, 1.0)};
}

Interval bootstrap_interval(std::span<const double> values) {
  constexpr std::size_t draws = 2000;
  std::mt19937 random(42);
  std::vector<double> means(draws);
  for (double& mean : means) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[random() % values.size()];
    mean = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end());
  return {means[draws / 40], means[draws - 1 - draws / 40]};
}

Interval share_interval(std::span<const double> shares) {
  const bool right_or_wrong = std::all_of(shares.begin(), shares.end(), [](double s) { return s == 0 || s == 1; });
  if (!right_or_wrong) return bootstrap_interval(shares);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  return wilson_interval(sum / static_cast<double>(shares.size()), static_cast<int>(shares.size()));
}

}  // namespace hayloft::runtime::eval
