#include "runtime/tokenizer/text_stream.h"

#include <algorithm>
#include <string_view>

namespace hayloft::runtime {

// Decoders look at neighbouring tokens, so each is decoded behind the one before it of those that are seen: a special
// token between two words is no beginning of a text.
std::string TextStream::push(std::int32_t token) {
  if (tokenizer_.is_special(token)) return "";
  const std::string before = tokenizer_.decode({previous_});
  const std::string both = tokenizer_.decode({previous_, token});
  previous_ = token;
  return utf8_.push(std::string_view(both).substr(std::min(before.size(), both.size())));
}

}  // namespace hayloft::runtime
