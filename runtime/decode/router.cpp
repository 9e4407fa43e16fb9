#include "runtime/decode/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hayloft::runtime {
namespace {

// Ranks experts by their logits.
bool ahead(const float* logits, int a, int b) {
  const float x = logits[a], y = logits[b];
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
  return x != y ? x > y : a < b;
}

}  // namespace

std::vector<ExpertTokens> route(const float* logits, int T, const Experts& experts, std::span<const float> scales) {
  std::vector<ExpertTokens> all(static_cast<std::size_t>(experts.count));
  std::vector<int> order(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].expert = static_cast<int>(i);
  for (int t = 0; t < T; ++t, logits += experts.count) {
    std::iota(order.begin(), order.end(), 0);
    const auto used = order.begin() + experts.used;
    std::partial_sort(order.begin(), used, order.end(), [&](int a, int b) { return ahead(logits, a, b); });
    const float largest = logits[order.front()];
    const auto share = [&](int expert) { return std::exp(logits[expert] - largest); };
    float sum = 0;
    std::for_each(order.begin(), experts.share_of_chosen ? used : order.end(),
                  [&](int expert) { sum += share(expert); });
    // An expert whose logit is not a number would never be chosen: what the token becomes is none either, which is
    // said.
    if (std::any_of(logits, logits + experts.count, [](float logit) { return !std::isfinite(logit); })) sum = NAN;
    std::for_each(order.begin(), used, [&](int expert) {
      all[static_cast<std::size_t>(expert)].tokens.push_back(t);
      const float scale = scales.empty() ? 1.0f : scales[static_cast<std::size_t>(expert)];
      all[static_cast<std::size_t>(expert)].weights.push_back(share(expert) / sum * scale);
    });
  }
  std::erase_if(all, [](const ExpertTokens& each) { return each.tokens.empty(); });
  return all;
}

std::vector<int> experts_of(std::int32_t token, std::span<const ExpertTokens> chosen) {
  std::vector<int> experts;
  for (const ExpertTokens& each : chosen) {
    if (std::ranges::binary_search(each.tokens, token)) experts.push_back(each.expert);
  }
  return experts;
}

}  // namespace hayloft::runtime
