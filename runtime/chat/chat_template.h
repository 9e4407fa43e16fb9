#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hayloft::runtime {

// One message of a conversation.
struct ChatMessage {
  std::string role;  // user, assistant, system, tool, ...
  std::string content;
};

// What a conversation is written with besides its messages.
struct ChatOptions {
  bool add_generation_prompt = true;     // ends where the assistant's answer begins
  std::string variables = {};            // a JSON object of further variables: tools, documents, enable_thinking, ...
  std::time_t now = std::time(nullptr);  // for templates that write the date
};

// How a model writes a conversation: its chat template in Jinja, with the special tokens that the template names, gives
// the text that transformers' apply_chat_template gives. The text holds the special tokens as they are written, BOS
// included where the template has it: Tokenizer::encode_prompt reads it. Immutable, cheap to copy, thread-safe.
class ChatTemplate {
 public:
  ChatTemplate() = default;  // writes a single message as it is

  // The template in the model's folder: DIR/chat_template.jinja (and additional_chat_templates/*.jinja), else
  // chat_template of tokenizer_config.json, which may be several by name: "default", and "tool_use" where the variables
  // have tools. Nothing where there is none. Throws Error naming the file and what is damaged or not supported.
  static std::optional<ChatTemplate> of_model(const std::filesystem::path& directory);

  // "none", "llama-2", "llama-3", "chatml", or a text with {task} in it where the one message goes, in which \n is a
  // newline. Throws Error.
  static ChatTemplate named(const std::string& text);

  // source: Jinja; name is used in messages; variables: those that it may name besides, as bos_token and eos_token with
  // their texts. Throws Error naming it and the line.
  static ChatTemplate from_source(std::string_view source, const std::string& name,
                                  std::vector<std::pair<std::string, std::string>> variables = {});

  // Throws Error naming the template and the line: what it refuses itself, and what is not supported.
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

  // The same with messages as a JSON array of objects, which may hold more than a role and a text (tool_calls).
  std::string render_json(std::string_view messages, const ChatOptions& options = {}) const;

  // One message of the user up to the beginning of the answer.
  std::string text(const std::string& prompt) const;

 private:
  struct Source;
  std::shared_ptr<const Source> source_;  // null: a single message as it is
};

}  // namespace hayloft::runtime
