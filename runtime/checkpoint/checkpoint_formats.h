#pragma once

#include <optional>
#include <string_view>

#include "runtime/checkpoint/checkpoint.h"

namespace hayloft::runtime {

// Returns the type that a safetensors file calls F32, F16 or BF16; nothing for others.
std::optional<gguf::TensorType> float_type(std::string_view dtype);

// The formats behind Checkpoint::open.
std::unique_ptr<Checkpoint> open_folder_checkpoint(const std::filesystem::path& directory);
std::unique_ptr<Checkpoint> open_gguf_checkpoint(const std::filesystem::path& file);

}  // namespace hayloft::runtime
