#pragma once

#include <filesystem>
#include <optional>

#include "runtime/chat/chat_template.h"

namespace hayloft::runtime {

// The model's own way of writing a conversation; nothing where there is none. In a folder it is chat_template.jinja and
// additional_chat_templates/*.jinja, else chat_template of tokenizer_config.json, which may be several by name; in a
// GGUF file tokenizer.chat_template and tokenizer.chat_template.NAME. Throws Error naming the file and what is damaged
// or not supported.
std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model);

}  // namespace hayloft::runtime
