#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// GPT-2's byte alphabet: each of the 256 bytes is written as one printable character, so that byte-level vocabularies
// are text. Printable Latin-1 stands for itself, the other 68 bytes are U+0100 to U+0143 in their order.
namespace hayloft::runtime {

std::string_view byte_letter(std::uint8_t byte);

std::string to_byte_letters(std::string_view bytes);

// Appends the bytes that `letters` stands for to out; false, with out unchanged, if one of them is no letter.
bool append_from_byte_letters(std::string_view letters, std::string& out);

}  // namespace hayloft::runtime
