#include "runtime/decode/load_tokenizer.h"

#include <system_error>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/file.h"
#include "runtime/checkpoint/gguf/tokenizer.h"
#include "runtime/tokenizer/document.h"

namespace hayloft::runtime {

Tokenizer load_tokenizer(const std::filesystem::path& model) {
  if (!gguf::is_file(model)) return Tokenizer(model);
  const gguf::File file(model);
  return Tokenizer(TokenizerDocument{gguf::tokenizer_document(file.metadata()), model.string()});
}

std::uint64_t tokenizer_bytes(const std::filesystem::path& model) {
  if (!gguf::is_file(model)) {
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(model / "tokenizer.json", error);
    return error ? 0 : bytes;
  }
  const gguf::File file(model);
  std::uint64_t bytes = 0;
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores"}) {
    const gguf::Value* value = file.metadata().find(key);
    const gguf::Array* list = value ? std::get_if<gguf::Array>(value) : nullptr;
    if (list) bytes += list->bytes.size();
  }
  return bytes;
}

}  // namespace hayloft::runtime
