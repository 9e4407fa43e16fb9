#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {

// A line each on what DIR/tokenizer_config.json says and nothing here heeds: fields that are not known, and where it
// contradicts tokenizer.json, which holds. `tokenizer` is the one of DIR. Throws Error naming file and field.
std::vector<std::string> tokenizer_config_notes(const std::filesystem::path& directory, const Tokenizer& tokenizer);

}  // namespace hayloft::runtime
