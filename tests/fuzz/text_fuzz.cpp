#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/format.h"
#include "offload/text/list.h"
#include "offload/text/utf8.h"
#include "offload/text/visible.h"

// Texts from outside, whatever they hold: repairing UTF-8 gives valid UTF-8, at once and piece by piece alike; what is
// shown on a terminal has no control characters; numbers, sizes and lists are read or throw Error.
namespace {

using namespace hayloft;

void require(bool holds) {
  if (!holds) std::abort();
}

std::string repaired(std::string_view text) {
  std::string out;
  append_valid_utf8(text, /*keep_tail=*/false, out);
  return out;
}

void check_utf8(std::string_view text, std::size_t cut) {
  const std::string whole = repaired(text);
  require(valid_utf8_prefix(whole) == whole.size());
  require(repaired(whole) == whole);
  if (valid_utf8_prefix(text) == text.size()) require(whole == text);

  Utf8Stream stream;
  std::string streamed = stream.push(text.substr(0, cut));
  streamed += stream.push(text.substr(cut));
  streamed += stream.finish();
  require(streamed == whole);
}

void check_shown(std::string_view text) {
  for (const Lines lines : {Lines::kept, Lines::joined}) {
    for (const unsigned char byte : visible(text, lines)) {
      require(byte >= 0x20 ? byte != 0x7f : lines == Lines::kept && (byte == '\n' || byte == '\t'));
    }
  }
  require(printable(text).find('\n') == std::string::npos);
}

template <class Read>
void reads_or_refuses(const Read& read) {
  try {
    read();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_utf8(text, size == 0 ? 0 : data[0] % size);
  check_shown(text);
  reads_or_refuses([&] { require(parse_count(text) >= 0); });
  reads_or_refuses([&] { parse_bytes(text); });
  std::size_t bytes = 0;
  reads_or_refuses([&] {
    for (const std::string_view item : split_list(text)) bytes += item.size();
  });
  require(bytes <= size);
  return 0;
}
