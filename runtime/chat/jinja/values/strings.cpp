#include "runtime/chat/jinja/values/strings.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "offload/text/utf8.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime::jinja {
namespace {

template <class Member>
std::string_view stripped_of(std::string_view text, Side side, Member&& member) {
  std::size_t begin = 0, end = text.size();
  while (side != Side::right && begin < end && member(utf8_at(text, begin))) begin += utf8_at(text, begin).length;
  while (side != Side::left && end > begin) {
    const std::size_t before = utf8_before(text, end);
    if (!member(utf8_at(text, before))) break;
    end = before;
  }
  return text.substr(begin, end - begin);
}

template <class Map>
std::string mapped(std::string_view text, Map&& map) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    map(next.code, out);
    at += next.length;
  }
  return out;
}

void append_upper(char32_t code, std::string& out) {
  if (code == U'\u00DF') return void(out += "SS");  // the one common letter whose upper case is two
  append_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))), out);
}

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_cased_as(std::string_view text, utf8proc_category_t wanted, utf8proc_category_t other) {
  bool seen = false;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    const utf8proc_category_t found = category(next.code);
    if (found == other || found == UTF8PROC_CATEGORY_LT) return false;
    seen |= found == wanted;
    at += next.length;
  }
  return seen;
}

}  // namespace

bool is_space(char32_t code) {
  return is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::int64_t length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at < text.size(); at += out.back().size()) {
    out.push_back(text.substr(at, utf8_at(text, at).length));
  }
  return out;
}

std::size_t offset_of(std::string_view text, std::int64_t character) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins && character-- == 0) break;
  }
  return at;
}

// memmem is linear where std::string's search compares again at every place.
std::size_t find(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* const place = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return place ? static_cast<std::size_t>(static_cast<const char*>(place) - text.data()) : std::string_view::npos;
}

std::size_t find_last(std::string_view text, std::string_view wanted) {
  const std::string back(text.rbegin(), text.rend()), wanted_back(wanted.rbegin(), wanted.rend());
  const std::size_t at = find(back, wanted_back);
  return at == std::string_view::npos ? at : text.size() - at - wanted.size();
}

std::int64_t count(std::string_view text, std::string_view wanted) {
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = find(text, wanted, at)) != std::string_view::npos; at += wanted.size()) ++found;
  return found;
}

std::string_view stripped(std::string_view text, Side side) {
  return stripped_of(text, side, [](const Utf8Char& c) { return is_space(c.code); });
}

std::string_view stripped(std::string_view text, Side side, std::string_view these) {
  std::u32string set;
  for (const std::string_view c : characters(these)) set += utf8_at(c, 0).code;
  std::sort(set.begin(), set.end());
  return stripped_of(text, side, [&](const Utf8Char& c) { return std::binary_search(set.begin(), set.end(), c.code); });
}

std::vector<std::string_view> split(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  text = stripped(text, from_right ? Side::right : Side::left);
  const auto space_at = [&](std::size_t at) { return is_space(utf8_at(text, at).code); };
  while (!text.empty() && static_cast<std::int64_t>(parts.size()) != most) {
    if (from_right) {
      std::size_t begin = text.size();
      while (begin > 0 && !space_at(utf8_before(text, begin))) begin = utf8_before(text, begin);
      parts.push_back(text.substr(begin));
      text = stripped(text.substr(0, begin), Side::right);
    } else {
      std::size_t end = 0;
      while (end < text.size() && !space_at(end)) end += utf8_at(text, end).length;
      parts.push_back(text.substr(0, end));
      text = stripped(text.substr(end), Side::left);
    }
  }
  if (!text.empty()) parts.push_back(text);  // the spaces at its other end belong to it, as in Python
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t most,
                                    bool from_right) {
  if (from_right) {
    const std::string back(text.rbegin(), text.rend()), separator_back(separator.rbegin(), separator.rend());
    std::vector<std::string_view> parts = split(back, separator_back, most, false);
    for (std::string_view& part : parts) {
      const auto begin = static_cast<std::size_t>(part.data() - back.data());
      part = text.substr(text.size() - begin - part.size(), part.size());
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  while (static_cast<std::int64_t>(parts.size()) != most) {
    const std::size_t at = find(text, separator, begin);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    const char32_t c = next.code;
    const std::size_t end = at;
    at += next.length;
    if (!((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    if (c == U'\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most) {
  std::string out;
  std::int64_t done = 0;
  if (from.empty()) {  // before every character and at the end
    for (const std::string_view c : characters(text)) {
      if (done != most) out += to, ++done;
      out += c;
    }
    if (done != most) out += to;
    return out;
  }
  for (; done != most; ++done) {
    const std::size_t at = find(text, from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

std::string upper(std::string_view text) {
  return mapped(text, append_upper);
}

std::string lower(std::string_view text) {
  return lowercase(text);
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  const std::size_t first = utf8_at(text, 0).length;
  std::string out;
  append_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(utf8_at(text, 0).code))), out);
  return out + lower(text.substr(first));
}

namespace {

// One character in capitals or small letters; most are of ASCII.
void append_cased(std::string_view c, bool capital, std::string& out) {
  const char ascii = c[0];
  if (c.size() > 1) {
    out += capital ? upper(c) : lower(c);
  } else if (capital) {
    out += ascii >= 'a' && ascii <= 'z' ? static_cast<char>(ascii - 'a' + 'A') : ascii;
  } else {
    out += ascii >= 'A' && ascii <= 'Z' ? static_cast<char>(ascii - 'A' + 'a') : ascii;
  }
}

}  // namespace

std::string title(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    append_cased(text.substr(at, c.length), begins, out);
    begins = is_space(c.code) ||
             (c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) != std::string_view::npos);
    at += c.length;
  }
  return out;
}

std::string title_words(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view c = text.substr(at, utf8_at(text, at).length);
    append_cased(c, begins, out);
    begins = !all_of(c, CharacterClass::letter);
    at += c.size();
  }
  return out;
}

bool all_of(std::string_view text, CharacterClass wanted) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    const utf8proc_category_t found = category(next.code);
    const bool letter = found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
    const bool digit = found == UTF8PROC_CATEGORY_ND;
    switch (wanted) {
      case CharacterClass::digit:
        if (!digit) return false;
        break;
      case CharacterClass::letter:
        if (!letter) return false;
        break;
      case CharacterClass::letter_or_digit:
        if (!letter && !digit && found != UTF8PROC_CATEGORY_NL && found != UTF8PROC_CATEGORY_NO) return false;
        break;
      case CharacterClass::space:
        if (!is_space(next.code)) return false;
        break;
    }
    at += next.length;
  }
  return !text.empty();
}

bool is_upper(std::string_view text) {
  return is_cased_as(text, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL);
}

bool is_lower(std::string_view text) {
  return is_cased_as(text, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LU);
}

std::optional<std::string> unescaped(std::string_view text) {
  constexpr std::string_view letters = "abfnrtv\\'\"";
  constexpr std::string_view meant = "\a\b\f\n\r\t\v\\'\"";
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      out += text[at];
      continue;
    }
    const char c = text[++at];
    if (c == '\n') continue;
    if (const std::size_t known = letters.find(c); known != std::string_view::npos) {
      out += meant[known];
      continue;
    }
    const bool octal = c >= '0' && c <= '7';
    const std::size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') return std::nullopt;
    if (!octal && wanted == 0) {  // no escape: both characters stay
      out += '\\';
      out += c;
      continue;
    }
    const std::size_t begin = octal ? at : at + 1;
    std::uint32_t code = 0;
    const char* from = text.data() + std::min(begin, text.size());
    const char* last = text.data() + std::min(begin + (octal ? 3 : wanted), text.size());
    const auto [end, error] = std::from_chars(from, last, code, octal ? 8 : 16);
    if (error != std::errc() || (!octal && end != from + wanted)) return std::nullopt;
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return std::nullopt;
    append_utf8(static_cast<char32_t>(code), out);
    at = static_cast<std::size_t>(end - text.data()) - 1;
  }
  return out;
}

}  // namespace hayloft::runtime::jinja
