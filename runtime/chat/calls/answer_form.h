#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/calls/answer_part.h"

namespace hayloft::runtime {

class ChatTemplate;

// A tool that the model has been told of: its name, and the JSON schema of its arguments.
struct OfferedTool {
  std::string name;
  nlohmann::ordered_json parameters = nlohmann::ordered_json::object();
};

// Says how a model writes what is not text for the reader, by the template that it was trained with.
struct AnswerForm {
  bool tags = false;        // <tool_call>: JSON of Hermes and Qwen, or Qwen's <function=NAME>
  bool mistral = false;     // [TOOL_CALLS]
  bool llama = false;       // an object with a name and parameters, or the same behind <|python_tag|>
  bool channels = false;    // gpt-oss' <|channel|>NAME<|message|>
  bool thinks = false;      // <think> ... </think> before the answer
  bool in_thought = false;  // the prompt has ended behind <think>
  bool early = false;     // calls are held to a grammar: they are told while they are written, not when they are whole
  bool one_call = false;  // nothing is told behind the first call between tags
  std::vector<OfferedTool> tools = {};

  // Returns whether an answer is its text and nothing else, so that nothing has to be read from it.
  bool plain() const { return !reasons() && (tools.empty() || !calls()); }
  bool reasons() const { return channels || thinks || in_thought; }
  // The text that ends reasoning and begins the answer, special tokens as they are written. Where it reasons.
  std::string_view answer_begins() const {
    return channels ? "<|end|><|start|>assistant<|channel|>final<|message|>" : "</think>";
  }
  bool calls() const { return tags || mistral || llama || channels; }
};

inline constexpr std::string_view kCallEnd = "</tool_call>";

// The form that a template's own text shows. The tools are those of a request; `prompt` is the conversation as the
// template has written it.
AnswerForm answer_form(const ChatTemplate& chat_template, std::vector<OfferedTool> tools, std::string_view prompt);

// Takes an answer apart while it is generated: what the reader is to see, reasoning, and calls of tools, each of them
// when it is whole, or early. A call that is no JSON, or of a tool that was not offered, stays text. What has been told
// early is not taken back; as a grammar holds it, it can be cut off, but not break. What is told in all does not depend
// on how the answer comes in runs of text. Not thread-safe.
class AnswerReader {
 public:
  virtual ~AnswerReader() = default;
  virtual std::vector<AnswerPart> push(const TextRun& run) = 0;
  virtual std::vector<AnswerPart> finish() = 0;  // what was held back; the last call
  virtual bool ended() const { return false; }   // nothing is told any more, see AnswerForm::one_call
  virtual bool reasoning() const = 0;            // what comes next is reasoning, or ends it
  virtual bool heads() const { return false; }   // the text that came last is of a message's head, which is not told
};

// The form outlives it. Null where it is plain.
std::unique_ptr<AnswerReader> make_answer_reader(const AnswerForm& form);

// Adds a part, to the last one where both are text of a kind; nothing of an empty text.
void add_part(std::vector<AnswerPart>& parts, AnswerPart::Kind kind, std::string_view text);
void add_calls(std::vector<AnswerPart>& parts, std::vector<ToolCall> calls);

}  // namespace hayloft::runtime
