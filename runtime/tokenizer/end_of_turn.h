#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {

// Returns the ids of special tokens with which models end their turn of a conversation, or a text, ascending:
// <|im_end|>, </s>, ... A checkpoint may name fewer of them as its end-of-text tokens. Where <|return|> and <|call|>
// end a turn, as gpt-oss', or <|flush|> and <|calls|>, as Solar's, <|end|> ends one of its messages, and is none of
// them. special: the id of a special token by its name, -1 where there is none.
std::vector<std::int32_t> end_of_turn_tokens(const std::function<std::int32_t(std::string_view name)>& special);
// The same of a tokenizer's.
std::vector<std::int32_t> end_of_turn_tokens(const Tokenizer& tokenizer);

}  // namespace hayloft::runtime
