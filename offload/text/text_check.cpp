#include "offload/text/text_check.h"

#include <algorithm>

#include "offload/error.h"
#include "offload/text/utf8.h"

namespace hayloft {
namespace {

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

// The encoding that a byte order mark names; empty: none but UTF-8. UTF-32 before UTF-16, whose mark begins alike.
std::string_view marked_encoding(std::string_view bytes) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\xFF\xFE\0\0"sv) || bytes.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (bytes.starts_with("\xFF\xFE"sv) || bytes.starts_with("\xFE\xFF"sv)) return "UTF-16";
  return {};
}

// UTF-16 without a mark: of text that is mostly ASCII one of two bytes is zero, always the same one.
std::string_view unmarked_encoding(std::string_view bytes) {
  const std::string_view beginning = bytes.substr(0, std::min<std::size_t>(bytes.size(), 4096) / 2 * 2);
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < beginning.size(); ++i) zeros[i % 2] += beginning[i] == '\0';
  const std::size_t most = beginning.size() / 2;
  if (most == 0) return {};
  if (zeros[0] == 0 && zeros[1] >= (most + 1) / 2) return "UTF-16LE";
  if (zeros[1] == 0 && zeros[0] >= (most + 1) / 2) return "UTF-16BE";
  return {};
}

std::size_t line_at(std::string_view bytes, std::size_t at) {
  return 1 + static_cast<std::size_t>(std::count(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

[[noreturn]] void refuse_encoding(const std::string& name, std::string_view encoding) {
  fail("{}: is {}, and text is read as UTF-8; convert it: iconv -f {} -t UTF-8", name, encoding, encoding);
}

}  // namespace

bool is_text(std::string_view bytes) {
  return bytes.find('\0') == std::string_view::npos && valid_utf8_prefix(bytes) == bytes.size();
}

void require_text(const std::string& name, std::string_view text) {
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    const std::string_view encoding = unmarked_encoding(text);
    if (!encoding.empty()) refuse_encoding(name, encoding);
    fail("{}: is no text: byte {} (line {}) is zero", name, zero, line_at(text, zero));
  }
  const std::size_t good = valid_utf8_prefix(text);
  if (good == text.size()) return;
  fail(
      "{}: is not UTF-8: byte {} (line {}) is 0x{:02X}; convert it, as from Latin-1 by iconv -f LATIN1 -t UTF-8, or "
      "drop such bytes by iconv -c -f UTF-8 -t UTF-8",
      name, good, line_at(text, good), static_cast<unsigned char>(text[good]));
}

std::string checked_text(const std::string& name, std::string bytes) {
  const std::string_view encoding = marked_encoding(bytes);
  if (!encoding.empty()) refuse_encoding(name, encoding);
  require_text(name, bytes);
  if (bytes.starts_with(kUtf8Mark)) bytes.erase(0, kUtf8Mark.size());
  return bytes;
}

}  // namespace hayloft
