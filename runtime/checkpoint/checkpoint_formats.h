#pragma once

#include "runtime/checkpoint/checkpoint.h"

namespace hayloft::runtime {

// The formats behind Checkpoint::open.
std::unique_ptr<Checkpoint> open_folder_checkpoint(const std::filesystem::path& directory);
std::unique_ptr<Checkpoint> open_gguf_checkpoint(const std::filesystem::path& file);

}  // namespace hayloft::runtime
