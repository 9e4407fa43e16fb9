#include <cstddef>
#include <cstdint>
#include <string>

#include "offload/error.h"
#include "offload/text/ordered_json.h"
#include "runtime/grammar/json_schema.h"
#include "runtime/grammar/recogniser.h"

#include <nlohmann/json.hpp>

// Whatever is sent as a grammar or a schema, it is one or Error says why not; the grammar of a schema can be read, and
// any text may be put to it. The first byte chooses.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hayloft::runtime::grammar;
  if (size == 0 || size > 4096) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    std::string source = text;
    if (data[0] % 2 == 1) {
      source = gbnf_of_schema(hayloft::parse_ordered_json(text));
      if (source.size() > (1U << 17)) return 0;
    }
    Recogniser recogniser(parse_gbnf(source));
    Recogniser::State state = recogniser.start();
    for (const char c : std::string(R"({"a": [1, "b"]} -2.5)") + text.substr(0, 64)) {
      if (state == Recogniser::dead) state = recogniser.start();
      if (state == Recogniser::dead) break;
      state = recogniser.next(state, static_cast<unsigned char>(c));
    }
  } catch (const hayloft::Error& error) {
    if (std::string(error.what()).empty()) __builtin_trap();
  }
  return 0;
}
