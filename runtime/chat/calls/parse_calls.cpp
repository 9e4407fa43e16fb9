#include "runtime/chat/calls/parse_calls.h"

#include <algorithm>
#include <set>
#include <string>

#include "offload/error.h"
#include "offload/text/ordered_json.h"

namespace hayloft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSpaces = " \t\r\n";
constexpr int kMostNestedCall = 100;
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";

const OfferedTool* offered(std::string_view name, std::span<const OfferedTool> tools) {
  const auto found = std::ranges::find(tools, name, &OfferedTool::name);
  return found == tools.end() ? nullptr : &*found;
}

std::optional<ordered_json> json_of_call(std::string_view text) {
  try {
    return parse_ordered_json(text, LongIntegers::kept, kMostNestedCall);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// {"name": ..., "arguments" or "parameters": {...}}; arguments may be the text of an object as well.
std::optional<ToolCall> call_of(const ordered_json& object, std::span<const OfferedTool> tools) {
  if (!object.is_object()) return std::nullopt;
  const ordered_json* function = &object;
  if (object.contains("function") && object["function"].is_object()) function = &object["function"];
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return std::nullopt;
  auto arguments = function->find("arguments");
  if (arguments == function->end()) arguments = function->find("parameters");
  const std::string& called = name->get_ref<const std::string&>();
  if (offered(called, tools) == nullptr) return std::nullopt;
  if (arguments == function->end()) return ToolCall{called, "{}"};
  if (arguments->is_string()) return parse_arguments(called, arguments->get_ref<const std::string&>(), tools);
  if (!arguments->is_object()) return std::nullopt;
  return ToolCall{called, text_of_json(*arguments)};
}

// The types that a schema allows, by their names; none where it does not say. References lead into `root`.
class AllowedTypes {
 public:
  AllowedTypes(const ordered_json& schema, const ordered_json& root) : root_(root) { add(schema, 0); }

  bool text() const { return names_.contains("string"); }
  bool other(const ordered_json& value) const {
    return value.is_binary()    ? has("number") || has("integer")  // of more than 64 bits
           : value.is_number()  ? has("number") || (value.is_number_integer() && has("integer"))
           : value.is_boolean() ? has("boolean")
           : value.is_null()    ? has("null")
           : value.is_object()  ? has("object")
                                : value.is_array() && has("array");
  }

 private:
  bool has(const char* name) const { return names_.contains(name); }

  // Each part once: a schema may refer to itself.
  void add(const ordered_json& schema, int depth) {
    if (!schema.is_object() || depth > kMostNestedCall || !seen_.insert(&schema).second) return;
    for (const auto& [key, value] : schema.items()) {
      if (key == "type") {
        for (const ordered_json& each : value.is_array() ? value : ordered_json::array({value})) {
          if (each.is_string()) names_.insert(each.get<std::string>());
        }
      } else if ((key == "anyOf" || key == "oneOf" || key == "allOf") && value.is_array()) {
        for (const ordered_json& each : value) add(each, depth + 1);
      } else if (key == "$ref" && value.is_string()) {
        if (const ordered_json* const part = part_of_json(root_, value.get_ref<const std::string&>()))
          add(*part, depth + 1);
      }
    }
  }

  const ordered_json& root_;
  std::set<std::string, std::less<>> names_;
  std::set<const ordered_json*> seen_;
};

// A parameter that may be a text is one, unless it is JSON of another type that its schema allows; others are JSON, and
// texts where they are none.
ordered_json parameter_value(const OfferedTool& tool, const std::string& key, std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  const ordered_json& parameters = tool.parameters;
  const bool described = parameters.is_object() && parameters.contains("properties") &&
                         parameters["properties"].is_object() && parameters["properties"].contains(key);
  const ordered_json nothing;
  const AllowedTypes types(described ? parameters["properties"][key] : nothing, parameters);
  std::optional<ordered_json> value = json_of_call(text);
  if (!value || (types.text() && !types.other(*value))) return std::string(text);
  return std::move(*value);
}

// Takes `wanted` from the beginning, behind white space; false: it is not there.
bool take_text(std::string_view& text, std::string_view wanted) {
  const std::string_view rest = trimmed(text);
  if (!rest.starts_with(wanted)) return false;
  text = rest.substr(wanted.size());
  return true;
}

// Takes what is before `end`, which goes as well.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view end) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return before;
}

std::optional<ToolCall> parse_function_tags(std::string_view text, std::span<const OfferedTool> tools) {
  if (!take_text(text, "<function=")) return std::nullopt;
  const auto name = take_until(text, ">");
  const OfferedTool* const tool = name ? offered(trimmed(*name), tools) : nullptr;
  if (tool == nullptr) return std::nullopt;
  ordered_json arguments = ordered_json::object();
  while (std::optional<CallParameter> parameter = take_parameter(text, *tool)) {
    arguments[parameter->key] = std::move(parameter->value);
  }
  if (!take_text(text, "</function>") || !trimmed(text).empty()) return std::nullopt;
  return ToolCall{tool->name, text_of_json(arguments)};
}

std::size_t end_behind_strings(std::string_view text) {
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\') ++i;
    if (!quoted && text.substr(i).starts_with(kCallEnd)) return i;
  }
  return std::string_view::npos;
}

// `end`: the first closing tag, whatever it stands in.
std::size_t end_behind_parameters(std::string_view text, std::size_t end) {
  for (std::size_t at = 0;;) {
    at = text.find(kParameter, at);
    if (at >= end) return end;
    at = text.find(kParameterEnd, at);
    if (at == std::string_view::npos) return at;
    if (at > end) end = text.find(kCallEnd, at);
  }
}

Calls several(const ordered_json& list, std::span<const OfferedTool> tools) {
  std::vector<ToolCall> calls;
  for (const ordered_json& each : list) {
    std::optional<ToolCall> call = call_of(each, tools);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

std::optional<CallParameter> take_parameter(std::string_view& text, const OfferedTool& tool) {
  std::string_view rest = text;
  if (!take_text(rest, kParameter)) return std::nullopt;
  const auto key = take_until(rest, ">");
  const auto value = key ? take_until(rest, kParameterEnd) : std::nullopt;
  if (!value) return std::nullopt;
  text = rest;
  std::string named(trimmed(*key));
  ordered_json parsed = parameter_value(tool, named, *value);
  return CallParameter{std::move(named), std::move(parsed)};
}

std::size_t end_of_tagged_call(std::string_view text) {
  const std::size_t first = text.find(kCallEnd);
  if (first == std::string_view::npos) return first;
  const std::string_view call = trimmed(text);
  return call.starts_with("<function=")                   ? end_behind_parameters(text, first)
         : call.starts_with('{') || call.starts_with('[') ? end_behind_strings(text)
                                                          : first;
}

std::size_t end_of_json(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth <= 0) return depth == 0 ? i + 1 : std::string_view::npos;
  }
  return std::string_view::npos;
}

std::optional<ToolCall> parse_arguments(std::string_view name, std::string_view text,
                                        std::span<const OfferedTool> tools) {
  const OfferedTool* const tool = offered(name, tools);
  if (tool == nullptr) return std::nullopt;
  if (trimmed(text).empty()) return ToolCall{tool->name, "{}"};
  const std::optional<ordered_json> arguments = json_of_call(text);
  if (!arguments || !arguments->is_object()) return std::nullopt;
  return ToolCall{tool->name, text_of_json(*arguments)};
}

Calls parse_tagged_call(std::string_view text, std::span<const OfferedTool> tools) {
  text = trimmed(text);
  if (text.starts_with('<')) {
    const std::optional<ToolCall> call = parse_function_tags(text, tools);
    return call ? Calls({*call}) : std::nullopt;
  }
  const std::optional<ordered_json> json = json_of_call(text);
  if (!json) return std::nullopt;
  return several(json->is_array() ? *json : ordered_json::array({*json}), tools);
}

Calls parse_mistral_calls(std::string_view text, std::span<const OfferedTool> tools) {
  text = trimmed(text);
  if (text.starts_with('[')) {
    const std::optional<ordered_json> json = json_of_call(text);
    return json ? several(*json, tools) : std::nullopt;
  }
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    take_text(text, "[TOOL_CALLS]");
    const std::size_t end = text.find_first_of("[{");
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view name = trimmed(text.substr(0, end));
    text.remove_prefix(end);
    if (take_text(text, "[CALL_ID]")) text.remove_prefix(std::min(text.size(), text.find_first_of("[{")));
    take_text(text, "[ARGS]");
    text = trimmed(text);
    const std::size_t size = end_of_json(text);
    if (size == std::string_view::npos) return std::nullopt;
    std::optional<ToolCall> call = parse_arguments(name, text.substr(0, size), tools);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
    text = trimmed(text.substr(size));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

Calls parse_bare_calls(std::string_view text, std::span<const OfferedTool> tools) {
  std::vector<ToolCall> calls;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    if (!calls.empty() && text.starts_with(';')) text = trimmed(text.substr(1));
    const std::size_t size = text.starts_with('{') ? end_of_json(text) : std::string_view::npos;
    if (size == std::string_view::npos) return std::nullopt;
    const std::optional<ordered_json> json = json_of_call(text.substr(0, size));
    std::optional<ToolCall> call = json ? call_of(*json, tools) : std::nullopt;
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
    text.remove_prefix(size);
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

}  // namespace hayloft::runtime
