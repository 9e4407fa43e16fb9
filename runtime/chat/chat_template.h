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

// Returns the messages as the JSON array that render_json takes, replacement characters where a text is not UTF-8, as
// the tokenizer would read it.
std::string messages_json(std::span<const ChatMessage> messages);

// The values that a conversation is written with besides its messages.
struct ChatOptions {
  bool add_generation_prompt = true;     // ends where the assistant's answer begins
  std::string variables = {};            // a JSON object of further variables: tools, documents, enable_thinking, ...
  std::time_t now = std::time(nullptr);  // for templates that write the date
};

// One of a model's templates: its name, its Jinja source, and where it was found, for messages.
struct NamedTemplate {
  std::string name;
  std::string source;
  std::string where;
};

// Writes a conversation as a model would: its chat template in Jinja, with the special tokens that the template names,
// gives the text that transformers' apply_chat_template gives. The text holds the special tokens as they are written,
// BOS included where the template has it: Tokenizer::encode_prompt reads it. Immutable, cheap to copy, thread-safe.
class ChatTemplate {
 public:
  ChatTemplate() = default;  // writes a single message as it is

  // "none", which writes messages and answers one behind another, "llama-2", "llama-3", "chatml", or a text as
  // from_text() has it, with {task} where a message goes. Throws Error.
  static ChatTemplate named(const std::string& text);

  // Writes each message of the user as a text in which it takes every place that is marked so, and \n is a newline, and
  // answers as they are; other roles are refused. name is used in messages.
  static ChatTemplate from_text(std::string text, const std::string& place, const std::string& name);

  // source: Jinja; name is used in messages; variables: those that it may name besides, as bos_token and eos_token with
  // their texts. Throws Error naming it and the line.
  static ChatTemplate from_source(std::string_view source, const std::string& name,
                                  std::vector<std::pair<std::string, std::string>> variables = {});

  // Several templates of one model, of which "tool_use" writes conversations with tools, where there is one, and
  // "default" all others. Throws Error naming the template and the line.
  static ChatTemplate from_sources(const std::vector<NamedTemplate>& sources,
                                   std::vector<std::pair<std::string, std::string>> variables = {});

  // Throws Error naming the template and the line: what it refuses itself, and what is not supported.
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

  // The same with messages as a JSON array of objects as clients of OpenAI's API and transformers have them. The order
  // of keys, here and in the variables, is the order in which the template sees them. As transformers 5 has it, the
  // arguments of tool calls reach the template as the object that their text describes, reasoning under both of its
  // names, and keys that are null not at all; a content that is null, or absent beside tool calls, is empty. Where the
  // template refuses arguments or lists of text parts in that form, prints them as Python prints objects, or leaves out
  // what it writes of the other form, it gets arguments as the text that was sent and contents as one text.
  std::string render_json(std::string_view messages, const ChatOptions& options = {}) const;

  // One message of the user up to the beginning of the answer.
  std::string text(const std::string& prompt) const;

  // Returns whether tools that are given (the variable `tools`) reach the prompt.
  bool takes_tools() const;

  // Returns whether the template names `word` in its code, as a variable, a key or a text of its own: a role that it
  // knows.
  bool names(std::string_view word) const;

  // Returns whether `text` stands anywhere in the template.
  bool mentions(std::string_view text) const;

  // Returns what it is made of, templates and variables: two with the same write the same at the same time.
  std::string sources() const;

 private:
  struct Source;
  std::shared_ptr<const Source> source_;  // null: a single message as it is
};

}  // namespace hayloft::runtime
