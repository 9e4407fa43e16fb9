#include <cstddef>
#include <cstdint>
#include <string_view>

#include "offload/error.h"
#include "runtime/tokenizer/tokenizer.h"

// Whatever a tokenizer.json holds, reading it and working with what was read either succeeds or throws Error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kText =
      "The needle's in the hay, 12345 <s> [MASK]<|eot_id|>  \r\n\n\t\xC3\xA9 e\xCC\x81 \xE2\x96\x81\xE5\xA4\xA9"
      " \xF0\x9F\x98\x80\xFF aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ";
  using hayloft::runtime::Tokenizer;
  try {
    const auto tokenizer = Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "tokenizer.json");
    const auto tokens = tokenizer.encode(kText);
    tokenizer.decode(tokens);
    tokenizer.decode(tokens, /*special=*/true, /*continued=*/true);
  } catch (const hayloft::Error&) {
  }
  return 0;
}
