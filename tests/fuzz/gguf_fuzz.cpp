// Any bytes are either refused with an Error or give metadata and tensors that lie inside them, and perhaps a tokenizer
// that can be worked with, and the shape of a model that there can be.
#include <cstdlib>
#include <vector>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/config.h"
#include "runtime/checkpoint/gguf/parse.h"
#include "runtime/checkpoint/gguf/tokenizer.h"
#include "runtime/tokenizer/document.h"
#include "runtime/tokenizer/tokenizer.h"

namespace {

using namespace hayloft::runtime;

// Reads all of a value, so that the address sanitizer judges the bounds.
std::size_t read_value(const gguf::Metadata& metadata, const std::string& key, const gguf::Value& value) {
  const auto* array = std::get_if<gguf::Array>(&value);
  if (!array) return 0;
  return array->type == gguf::ValueType::text ? metadata.texts(key).size() : metadata.numbers(key).size();
}

void use_tokenizer(const gguf::Metadata& metadata) {
  if (!metadata.contains("tokenizer.ggml.model")) return;
  gguf::end_tokens(metadata);
  const Tokenizer tokenizer(TokenizerDocument{gguf::tokenizer_document(metadata), "input"});
  tokenizer.decode(tokenizer.encode("The needle's in\xC3\xA9\xE2\x96\x81 <s>\n\n 12"), true);
}

void use_config(const gguf::Parsed& parsed) {
  const ModelConfig config = gguf::read_config(parsed.metadata, parsed.tensors);
  if (config.layers < 1 || config.query_heads % config.kv_heads != 0) std::abort();
  const int kinds =
      config.count(LayerKind::global) + config.count(LayerKind::sliding) + config.count(LayerKind::recurrent);
  if (kinds != config.layers) std::abort();
  if (config.experts.used > config.experts.count || config.intermediate_size < 1) std::abort();
  if (config.count(LayerKind::recurrent) > 0 && config.delta.kept_floats() < 1) std::abort();
}

template <class Use>
void try_to(const Use& use) {
  try {
    use();
  } catch (const hayloft::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(bytes), size);
  try {
    const gguf::Parsed parsed = gguf::parse(file, "input");
    for (const auto& [key, value] : parsed.metadata.values()) {
      if (read_value(parsed.metadata, key, value) > size) std::abort();
    }
    for (const auto& [name, tensor] : parsed.tensors) {
      std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
      gguf::dequantise(tensor.type, tensor.data, values.data());
    }
    try_to([&] { use_config(parsed); });
    try_to([&] { use_tokenizer(parsed.metadata); });
  } catch (const hayloft::Error&) {
  }
  return 0;
}
