#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Compares two distributions over the next token, given as logits. In double precision, natural logarithms.
namespace hayloft::runtime::eval {

std::int32_t argmax(std::span<const float> logits);  // ties go to the smaller id

// -log p(token).
double negative_log_likelihood(std::span<const float> logits, std::int32_t token);

// KL(p || q) = sum p log(p / q), p of `reference`, q of `other`: both [vocab]. 0 or above.
double divergence(std::span<const float> reference, std::span<const float> other);

// The mean, over the steps that are followed by `drafted` - 1 others, of how many steps from there on are `same`, at
// most `drafted`. None where there is no such step.
std::optional<double> accepted_tokens(const std::vector<bool>& same, int drafted);

}  // namespace hayloft::runtime::eval
