#include "offload/text/utf8.h"

#include <cstring>
#include <utility>

namespace hayloft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::size_t ascii_prefix(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  for (std::uint64_t word; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if (word & kHighBits) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Char utf8_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const std::size_t left = text.size() - at;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8Status::ok};
  if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1, Utf8Status::invalid};

  const std::uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code = lead & (0x7F >> length);
  // The second byte alone rules out overlong forms, surrogates and values past the last plane.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::uint32_t i = 1; i < length; ++i) {
    if (i >= left) return {0xFFFD, i, Utf8Status::truncated};
    if (byte(i) < low || byte(i) > high) return {0xFFFD, i, Utf8Status::invalid};
    code = code << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, Utf8Status::ok};
}

std::size_t utf8_before(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) return put(code);
  const int following = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  put((following == 1 ? 0xC0 : following == 2 ? 0xE0 : 0xF0) | code >> 6 * following);
  for (int i = following - 1; i >= 0; --i) put(0x80 | (code >> 6 * i & 0x3F));
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = ascii_prefix(text, 0);
  while (at < text.size()) {
    const Utf8Char next = utf8_at(text, at);
    if (next.status != Utf8Status::ok) break;
    at += next.length;
    if (next.length == 1) at = ascii_prefix(text, at);
  }
  return at;
}

std::size_t append_valid_utf8(std::string_view text, bool keep_tail, std::string& out) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t good = valid_utf8_prefix(text.substr(at));
    out.append(text.substr(at, good));
    at += good;
    if (at == text.size()) break;
    const Utf8Char bad = utf8_at(text, at);
    if (bad.status == Utf8Status::truncated && keep_tail) break;
    out.append(kReplacement);
    at += bad.length;
  }
  return at;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string whole;
  pending_.erase(0, append_valid_utf8(pending_, /*keep_tail=*/true, whole));
  return whole;
}

std::string Utf8Stream::finish() {
  std::string rest;
  append_valid_utf8(std::exchange(pending_, {}), /*keep_tail=*/false, rest);
  return rest;
}

}  // namespace hayloft
