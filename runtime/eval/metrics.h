#pragma once

#include <cstdint>
#include <span>
#include <vector>

// Compares two distributions over the next token, given as logits. In double precision, natural logarithms.
namespace hayloft::runtime::eval {

std::int32_t argmax(std::span<const float> logits);  // ties go to the smaller id

// -log p(token).
double negative_log_likelihood(std::span<const float> logits, std::int32_t token);

// KL(p || q) = sum p log(p / q), p of `reference`, q of `other`: both [vocab]. 0 or above.
double divergence(std::span<const float> reference, std::span<const float> other);

// Returns, of drafts that begin at each step which `drafted` - 1 others follow, in which share the first, the first
// two, and so on up to all `drafted` steps are `same`. Their sum is the mean number of tokens of such a draft that are
// accepted. Empty where no step begins one.
std::vector<double> accepted_shares(const std::vector<bool>& same, int drafted);

}  // namespace hayloft::runtime::eval
