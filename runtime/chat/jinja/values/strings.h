#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Python's operations on text. Text is valid UTF-8 and counted in code points.
namespace hayloft::runtime::jinja {

enum class Side : std::uint8_t { left, right, both };

bool is_space(char32_t code);  // str.isspace: White_Space and the separators U+001C to U+001F

std::int64_t length(std::string_view text);

// The code points, each as text.
std::vector<std::string_view> characters(std::string_view text);

// The byte at which a character begins, the end for their number.
std::size_t offset_of(std::string_view text, std::int64_t character);

// The first place of a text in another, or the last, npos where there is none; in linear time, whatever they are.
std::size_t find(std::string_view text, std::string_view wanted, std::size_t from = 0);
std::size_t find_last(std::string_view text, std::string_view wanted);
std::int64_t count(std::string_view text, std::string_view wanted);  // of places that do not overlap; not of ""

// Without white space, or without the characters of `these`, at the sides.
std::string_view stripped(std::string_view text, Side side);
std::string_view stripped(std::string_view text, Side side, std::string_view these);

// At white space; at most so many times, or any number where `most` is negative.
std::vector<std::string_view> split(std::string_view text, std::int64_t most, bool from_right);
// At `separator`, which is not empty.
std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t most,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalized(std::string_view text);
std::string title(std::string_view text);        // Jinja's filter: words begin behind white space, -, (, {, [ and <
std::string title_words(std::string_view text);  // str.title: words are runs of letters

// Tells whether every character is of the class, and there is one.
enum class CharacterClass : std::uint8_t { digit, letter, letter_or_digit, space };
bool all_of(std::string_view text, CharacterClass wanted);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

// The escapes of a string literal, nothing if there is one that is not known or not whole.
std::optional<std::string> unescaped(std::string_view text);

}  // namespace hayloft::runtime::jinja
