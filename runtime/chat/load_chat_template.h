#pragma once

#include <filesystem>
#include <optional>

#include "runtime/chat/chat_template.h"

namespace hayloft::runtime {

// The model's own way of writing a conversation, from where its tokenizer comes; nothing where there is none. Throws
// Error.
std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model);

}  // namespace hayloft::runtime
