#pragma once

#include <cstdint>
#include <span>

#include "runtime/serve/generation.h"

namespace hayloft::runtime::serve {

// The token's log-probability and the `count` most likely tokens with theirs (ties: the smaller id first), from logits
// f32 [vocab]; sums in double. `token` must be below the vocabulary's size.
TokenChoice choice_of(std::span<const float> logits, std::int32_t token, int count);

}  // namespace hayloft::runtime::serve
