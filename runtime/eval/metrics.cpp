#include "runtime/eval/metrics.h"

#include <algorithm>
#include <cmath>

namespace hayloft::runtime::eval {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

}  // namespace

std::int32_t argmax(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double negative_log_likelihood(std::span<const float> logits, std::int32_t token) {
  return log_sum_exp(logits) - logits[static_cast<std::size_t>(token)];
}

double divergence(std::span<const float> reference, std::span<const float> other) {
  const double p_norm = log_sum_exp(reference);
  const double q_norm = log_sum_exp(other);
  double sum = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double p = reference[i] - p_norm;
    sum += std::exp(p) * (p - (other[i] - q_norm));
  }
  return std::max(0.0, sum);  // rounding may leave it a hair below
}

std::vector<double> accepted_shares(const std::vector<bool>& same, int drafted) {
  const int drafts = static_cast<int>(same.size()) - drafted + 1;
  if (drafts < 1) return {};
  std::vector<double> shares(static_cast<std::size_t>(drafted));
  for (int first = 0; first < drafts; ++first) {
    for (int i = 0; i < drafted && same[static_cast<std::size_t>(first + i)]; ++i)
      shares[static_cast<std::size_t>(i)] += 1;
  }
  for (double& share : shares) share /= drafts;
  return shares;
}

}  // namespace hayloft::runtime::eval
