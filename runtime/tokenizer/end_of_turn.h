#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {

// Returns whether models end their turn of a conversation, or a text, with a special token of that name: <|im_end|>,
// </s>, ...
bool names_end_of_turn(std::string_view text);

// The ids of those that the tokenizer has, ascending. A checkpoint may name fewer of them as its end-of-text tokens.
std::vector<std::int32_t> end_of_turn_tokens(const Tokenizer& tokenizer);

}  // namespace hayloft::runtime
