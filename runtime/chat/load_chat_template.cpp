#include "runtime/chat/load_chat_template.h"

#include <fmt/format.h>

#include "runtime/checkpoint/gguf/file.h"
#include "runtime/checkpoint/gguf/tokenizer.h"

namespace hayloft::runtime {

std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model) {
  if (!gguf::is_file(model)) return ChatTemplate::of_model(model);
  const gguf::File file(model);
  constexpr const char* key = "tokenizer.chat_template";
  if (!file.metadata().contains(key)) return std::nullopt;
  return ChatTemplate::from_source(file.metadata().text(key), fmt::format("{}: {}", model.string(), key),
                                   gguf::special_tokens(file.metadata()));
}

}  // namespace hayloft::runtime
