#include <utility>

#include "runtime/tokenizer.h"
#include "runtime/unicode.h"

namespace hayloft::runtime {

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

}  // namespace hayloft::runtime
