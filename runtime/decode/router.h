#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/checkpoint/config.h"

namespace hayloft::runtime {

// The tokens that go through one expert, and what its outputs are multiplied by.
struct ExpertTokens {
  int expert = 0;
  std::vector<std::int32_t> tokens;  // ascending
  std::vector<float> weights;        // of them
};

// Chooses the experts of T tokens by the router's logits, f32 [T][experts.count] in host memory: those with the
// largest, the smaller expert of two that tie, a NaN below everything. A token's weights are exp(logit - m) divided by
// the sum of these over its own experts (Experts::share_of_chosen) or over all, times the expert's scale where there
// are any, [experts.count]; m is its largest logit. Experts ascending, those without a token left out.
std::vector<ExpertTokens> route(const float* logits, int T, const Experts& experts, std::span<const float> scales = {});
// Returns the experts, ascending, that one of these tokens goes through.
std::vector<int> experts_of(std::int32_t token, std::span<const ExpertTokens> chosen);

}  // namespace hayloft::runtime
