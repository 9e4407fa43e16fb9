#pragma once

#include <cstdint>
#include <span>

// Compares two distributions over the next token, given as logits. In double precision, natural logarithms.
namespace hayloft::runtime::eval {

std::int32_t argmax(std::span<const float> logits);  // ties go to the smaller id

// -log p(token).
double negative_log_likelihood(std::span<const float> logits, std::int32_t token);

// KL(p || q) = sum p log(p / q), p of `reference`, q of `other`: both [vocab]. 0 or above.
double divergence(std::span<const float> reference, std::span<const float> other);

}  // namespace hayloft::runtime::eval
