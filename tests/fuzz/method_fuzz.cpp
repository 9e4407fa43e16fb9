#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "runtime/attention/method_options.h"

// Whatever is written behind --attn, it is a list of methods with options or an Error, and a method that was read has a
// label. Faiss judges index factories.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hayloft::runtime;
  try {
    for (const std::string& item : split_methods({reinterpret_cast<const char*>(data), size})) {
      const MethodOptions method = parse_method(item, {});
      if (method_label(method).empty() || !(parse_method(item, method).name == method.name)) std::abort();
      ranking_options(method);
    }
  } catch (const hayloft::Error&) {
  }
  return 0;
}
