#pragma once

#include <cstdint>
#include <filesystem>

#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {

// The tokenizer of a model: DIR/tokenizer.json of a folder, the metadata of a GGUF file. Throws Error.
Tokenizer load_tokenizer(const std::filesystem::path& model);

// The bytes that it is read from, which its own memory grows with; 0 when they cannot be read.
std::uint64_t tokenizer_bytes(const std::filesystem::path& model);

}  // namespace hayloft::runtime
