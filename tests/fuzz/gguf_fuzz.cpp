// Any bytes are either refused with an Error or give metadata and tensors that lie inside them.
#include <cstdlib>
#include <vector>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/parse.h"

namespace {

using namespace hayloft::runtime::gguf;

// Reads all of a value, so that the address sanitizer judges the bounds.
std::size_t read_value(const Metadata& metadata, const std::string& key, const Value& value) {
  const Array* array = std::get_if<Array>(&value);
  if (!array) return 0;
  return array->type == ValueType::text ? metadata.texts(key).size() : metadata.numbers(key).size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(bytes), size);
  try {
    const Parsed parsed = parse(file, "input");
    for (const auto& [key, value] : parsed.metadata.values()) {
      if (read_value(parsed.metadata, key, value) > size) std::abort();
    }
    for (const auto& [name, tensor] : parsed.tensors) {
      std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
      dequantise(tensor.type, tensor.data, values.data());
    }
  } catch (const hayloft::Error&) {
  }
  return 0;
}
