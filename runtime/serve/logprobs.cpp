#include "runtime/serve/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace hayloft::runtime::serve {

TokenChoice choice_of(std::span<const float> logits, std::int32_t token, int count) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](std::int32_t id) {
    return TokenLogprob{id, static_cast<float>(logits[static_cast<std::size_t>(id)] - log_sum)};
  };
  TokenChoice choice{logprob(token), {}};
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t wanted = std::min(logits.size(), static_cast<std::size_t>(std::max(count, 0)));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = logits[static_cast<std::size_t>(a)];
                      const float y = logits[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (std::size_t i = 0; i < wanted; ++i) choice.top.push_back(logprob(order[i]));
  return choice;
}

}  // namespace hayloft::runtime::serve
