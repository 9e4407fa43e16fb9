#pragma once

#include <string_view>

namespace hayloft::runtime::eval::words {

// Word lists for needle keys and the grammar haystack, one lower-case word a line, sorted, no word twice. Embedded from
// runtime/eval/needle/words/*.txt when the library is built.
extern const std::string_view adjectives;
extern const std::string_view nouns;

}  // namespace hayloft::runtime::eval::words
