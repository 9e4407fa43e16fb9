#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "index/ann/ann.h"
#include "offload/error.h"
#include "runtime/attention/method.h"
#include "runtime/attention/method_options.h"

// Whatever is written behind --attn, it is a list of methods with options or an Error, and a method that was read has a
// label. The methods themselves are not built in here, nor Faiss, which judges index factories.
std::vector<std::string> hayloft::runtime::method_names() {
  return {"dense", "sparq", "topk", "ann", "window", "flexgen", "oracle", "lowrank", "pages", "h2o", "auto"};
}
bool hayloft::runtime::is_registered_method(std::string_view) {
  return false;
}
void hayloft::index::check_ann_factory(const std::string&, int) {}

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
