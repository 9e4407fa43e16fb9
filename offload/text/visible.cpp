#include "offload/text/visible.h"

#include "offload/text/utf8.h"

namespace hayloft {

std::string visible(std::string_view text, Lines lines) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    at += next.length;
    const bool space = next.code == '\n' || next.code == '\t' || next.code == '\r';
    const bool control = next.code < 0x20 || (next.code >= 0x7F && next.code < 0xA0);
    if (space && lines == Lines::joined) {
      shown += ' ';
    } else if (control && !(space && next.code != '\r')) {
      append_utf8(0xFFFD, shown);
    } else {
      append_utf8(next.code, shown);
    }
  }
  return shown;
}

}  // namespace hayloft
