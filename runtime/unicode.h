#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// What the tokenizers need of Unicode: UTF-8 in and out, the normal forms, and a few character classes.
namespace hayloft::runtime {

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

void append_utf8(char32_t code, std::string& out);

// Length of the longest prefix of text that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

// Appends text to out with each ill-formed subsequence replaced by U+FFFD, as browsers, Python and Rust do it. With
// `keep_tail`, a character cut off by the end of text is left alone. Returns the bytes of text consumed.
std::size_t append_valid_utf8(std::string_view text, bool keep_tail, std::string& out);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// text is valid UTF-8. Linear in text but for sorting, which is n log n in a run of combining marks.
std::string normalize(std::string_view text, NormalForm form);

// The full lower case mapping of each character by itself; text is valid UTF-8.
std::string lowercase(std::string_view text);

bool is_white_space(char32_t code);     // the White_Space property
bool is_word_character(char32_t code);  // Alphabetic, a mark, a decimal digit, connector punctuation or a joiner

}  // namespace hayloft::runtime
