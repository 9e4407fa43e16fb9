#pragma once

#include <cmath>
#include <vector>

namespace hayloft::testing {

// Returns the softmax as it is defined, without any care for overflow.
inline std::vector<double> plain_softmax(const std::vector<float>& logits) {
  std::vector<double> p(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp(double{logits[i]});
  for (double& x : p) x /= sum;
  return p;
}

inline double plain_divergence(const std::vector<float>& reference, const std::vector<float>& other) {
  const std::vector<double> p = plain_softmax(reference), q = plain_softmax(other);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
  return sum;
}

}  // namespace hayloft::testing
