#include "runtime/tokenizer/bpe/bytes.h"

#include <array>

#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {
namespace {

constexpr char32_t kLetters = 0x144;  // every letter is below

struct Alphabet {
  std::array<std::string, 256> letters;
  std::array<std::int16_t, kLetters> bytes;  // of a character, -1 if it is no letter

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool itself = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      const char32_t letter = itself ? byte : next++;
      append_utf8(letter, letters[byte]);
      bytes[letter] = static_cast<std::int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet built;
  return built;
}

}  // namespace

std::string_view byte_letter(std::uint8_t byte) {
  return alphabet().letters[byte];
}

std::string to_byte_letters(std::string_view bytes) {
  const Alphabet& known = alphabet();
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 2);
  for (const char byte : bytes) out += known.letters[static_cast<std::uint8_t>(byte)];
  return out;
}

bool append_from_byte_letters(std::string_view letters, std::string& out) {
  const Alphabet& known = alphabet();
  const std::size_t before = out.size();
  for (std::size_t at = 0; at < letters.size();) {
    const Utf8Char next = utf8_at(letters, at);
    if (next.code >= kLetters || known.bytes[next.code] < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(known.bytes[next.code]));
    at += next.length;
  }
  return true;
}

}  // namespace hayloft::runtime
