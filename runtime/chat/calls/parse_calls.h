#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/chat/calls/answer_form.h"

namespace hayloft::runtime {

using Calls = std::optional<std::vector<ToolCall>>;

// Each reads the calls in a text that is whole; none where it is no call of one of these tools.

// Between <tool_call> and </tool_call>: {"name": ..., "arguments": {...}}, or <function=NAME> with <parameter=KEY>.
Calls parse_tagged_call(std::string_view text, std::span<const OfferedTool> tools);

// Behind [TOOL_CALLS]: a list of such objects, or NAME[ARGS]{...}, once or several times.
Calls parse_mistral_calls(std::string_view text, std::span<const OfferedTool> tools);

// {"name": ..., "parameters": {...}}, once or several times with ; between them.
Calls parse_bare_calls(std::string_view text, std::span<const OfferedTool> tools);

// A parameter of <function=NAME>, and its value as JSON.
struct CallParameter {
  std::string key;
  nlohmann::ordered_json value;
};
// Takes <parameter=KEY>VALUE</parameter> from the beginning, behind white space; none where it is not there, or not yet
// to its end.
std::optional<CallParameter> take_parameter(std::string_view& text, const OfferedTool& tool);

// The arguments of a call of `name`: an object.
std::optional<ToolCall> parse_arguments(std::string_view name, std::string_view text,
                                        std::span<const OfferedTool> tools);

// Returns where the closing tag of a call stands, given from behind its opening one: inside of a string of its JSON, or
// of a parameter, the same text is no tag. npos: it has not come.
std::size_t end_of_tagged_call(std::string_view text);

// Returns the bytes up to the end of the JSON value that the text begins with; npos: it does not end there.
std::size_t end_of_json(std::string_view text);

std::string_view trimmed(std::string_view text);  // without the white space at both ends

}  // namespace hayloft::runtime
