#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8, read and written a character at a time, and mended.
namespace hayloft {

// The outcome of a step through UTF-8.
enum class Utf8Status { ok, invalid, truncated };

// One step through UTF-8. `length` bytes make up the character (ok), the maximal ill-formed subsequence that a decoder
// replaces by one U+FFFD (invalid), or the beginning of a character which the text's end cuts off (truncated).
struct Utf8Char {
  char32_t code;  // U+FFFD unless ok
  std::uint32_t length;
  Utf8Status status;
};

// The character at text[at], at < text.size(). Surrogates, overlong forms and values above U+10FFFF are invalid.
Utf8Char utf8_at(std::string_view text, std::size_t at);

// The beginning of the character that ends before text[end], 0 < end; text is valid UTF-8.
std::size_t utf8_before(std::string_view text, std::size_t end);

// Appends the bytes of one character.
void append_utf8(char32_t code, std::string& out);

// Length of the longest prefix of text that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

// Appends text to out with each ill-formed subsequence replaced by U+FFFD, as browsers, Python and Rust do it. With
// `keep_tail`, a character cut off by the end of text is left alone. Returns the bytes of text consumed.
std::size_t append_valid_utf8(std::string_view text, bool keep_tail, std::string& out);

// Holds back the bytes of a character that comes in pieces, so that streamed text is always whole UTF-8.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);  // what can be printed now
  std::string finish();                      // what is left, invalid bytes as U+FFFD

 private:
  std::string pending_;
};

}  // namespace hayloft
