#pragma once

#include <cstdint>
#include <string>

namespace hayloft::runtime {

// A run of an answer's text: of text tokens, or one special token as it is written, which is never shown.
struct TextRun {
  std::string text;
  bool special = false;
};

// A call of a tool: its name, and its arguments as a JSON object's text.
struct ToolCall {
  std::string name;
  std::string arguments;
};

// A part of an answer that is new: text for the reader, reasoning, a call, or more of the last call's arguments.
struct AnswerPart {
  enum class Kind : std::uint8_t { text, reasoning, call, arguments };
  Kind kind = Kind::text;
  std::string text;    // of all but a call
  ToolCall call = {};  // of a call
};

}  // namespace hayloft::runtime
