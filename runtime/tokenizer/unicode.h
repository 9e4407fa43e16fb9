#pragma once

#include <string>
#include <string_view>

#include "offload/text/utf8.h"

// Provides what the tokenizers need of Unicode besides UTF-8 (offload/text/utf8.h): the normal forms and a few
// character classes.
namespace hayloft::runtime {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// text is valid UTF-8. Linear in text but for sorting, which is n log n in a run of combining marks.
std::string normalize(std::string_view text, NormalForm form);

// The full lower case mapping of each character by itself; text is valid UTF-8.
std::string lowercase(std::string_view text);

bool is_white_space(char32_t code);     // the White_Space property
bool is_word_character(char32_t code);  // Alphabetic, a mark, a decimal digit, connector punctuation or a joiner

}  // namespace hayloft::runtime
