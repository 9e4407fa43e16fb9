#include "runtime/chat/message_forms.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "offload/error.h"
#include "offload/text/ordered_json.h"
#include "runtime/chat/jinja/template.h"

namespace hayloft::runtime {
namespace {

using nlohmann::ordered_json;

// Messages tell their reasoning under several names; templates read one of the first two.
constexpr std::array<const char*, 3> reasoning_names = {"reasoning_content", "thinking", "reasoning"};

// Enough to tell what a template was written for; the newest are the ones that templates write at all events.
constexpr std::size_t most_signs = 16;

bool calls_tools(const ordered_json& message) {
  return message.contains("tool_calls") || message.contains("function_call");
}

// A message as transformers 5 hands it over: without keys that are null, its reasoning under both names.
ordered_json normalised(const ordered_json& message) {
  if (!message.is_object()) return message;
  ordered_json kept = ordered_json::object();
  const ordered_json* reasoning = nullptr;
  for (const char* name : reasoning_names) {
    const auto found = message.find(name);
    if (!reasoning && found != message.end() && !found->is_null()) reasoning = &*found;
  }
  if (reasoning) kept["thinking"] = *reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) {
      kept[key] = value;
    } else if (key == "content") {
      kept[key] = "";
    }
  }
  if (reasoning) kept["reasoning_content"] = *reasoning;
  if (calls_tools(kept) && !kept.contains("content")) kept["content"] = "";
  return kept;
}

// Calls each(arguments) for every tool call of a message.
template <class Each>
void for_arguments(ordered_json& message, Each&& each) {
  const auto visit = [&](ordered_json& call) {
    if (!call.is_object()) return;
    const auto function = call.find("function");
    ordered_json& inner = function != call.end() && function->is_object() ? *function : call;
    if (const auto arguments = inner.find("arguments"); arguments != inner.end()) each(*arguments);
  };
  if (!message.is_object()) return;
  if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array()) {
    for (ordered_json& call : *calls) visit(call);
  }
  if (const auto call = message.find("function_call"); call != message.end()) visit(*call);
}

// The object that a text describes; nothing where it describes none. Clients send "" for a call without arguments.
std::optional<ordered_json> parsed_object(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return ordered_json::object();
  try {
    ordered_json value = parse_ordered_json(text, LongIntegers::kept);
    if (value.is_object()) return value;
  } catch (const Error&) {  // a model may have written anything
  }
  return std::nullopt;
}

bool is_text_part(const ordered_json& part) {
  if (!part.is_object()) return false;
  const auto type = part.find("type"), text = part.find("text");
  return type != part.end() && *type == "text" && text != part.end() && text->is_string();
}

// A content that is a list of parts, all of them texts.
ordered_json* text_parts(ordered_json& message) {
  if (!message.is_object()) return nullptr;
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array() || content->empty()) return nullptr;
  return std::all_of(content->begin(), content->end(), is_text_part) ? &*content : nullptr;
}

// The beginning of a text says enough, and is found in linear time.
std::string beginning(const std::string& text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  constexpr std::size_t most_bytes = 64;
  std::string part = text.substr(begin, most_bytes);
  return part.substr(0, part.find_last_not_of(" \t\r\n") + 1);
}

// A value as a template writes it.
std::string written(const ordered_json& value, const char* source) {
  return beginning(jinja::Template(source, "a value").render({{"value", value}}));
}

ordered_json joined(ordered_json messages) {
  for (ordered_json& message : messages) {
    ordered_json* const content = text_parts(message);
    if (!content) continue;
    std::string text;
    for (const ordered_json& part : *content) text += part["text"].get_ref<const std::string&>();
    *content = std::move(text);
  }
  return messages;
}

}  // namespace

MessageForms::MessageForms(const ordered_json& messages) {
  ordered_json first = messages;
  for (ordered_json& message : first) message = normalised(message);
  ordered_json as_sent = first;
  std::vector<const ordered_json*> objects, lists;
  for (ordered_json& message : first) {
    for_arguments(message, [&](ordered_json& arguments) {
      if (!arguments.is_string()) return;
      std::optional<ordered_json> object = parsed_object(arguments.get_ref<const std::string&>());
      if (!object) return;
      arguments = std::move(*object);
      objects.push_back(&arguments);
    });
    if (const ordered_json* content = text_parts(message)) lists.push_back(content);
  }
  add_signs(objects, lists);
  const bool parsed = !objects.empty(), parts = !lists.empty();
  forms_.push_back(std::move(first));
  if (parsed) forms_.push_back(std::move(as_sent));
  if (parts) {
    for (std::size_t i = 0, n = forms_.size(); i < n; ++i) forms_.push_back(joined(forms_[i]));
  }
}

void MessageForms::add_signs(std::vector<const ordered_json*> objects, std::vector<const ordered_json*> lists) {
  const auto newest = [](std::vector<const ordered_json*>& all) {
    if (all.size() > most_signs) all.erase(all.begin(), all.end() - most_signs);
  };
  newest(objects);
  newest(lists);
  for (const ordered_json* object : objects) {
    if (object->empty()) continue;
    wanted_.push_back(beginning(object->begin().key()));
    std::string python = written(*object, "{{ value }}");
    if (python != written(*object, "{{ value | tojson }}")) unwanted_.push_back(std::move(python));
  }
  for (const ordered_json* list : lists) {
    unwanted_.push_back(written(*list, "{{ value }}"));
    for (const ordered_json& part : *list) wanted_.push_back(beginning(part["text"].get_ref<const std::string&>()));
  }
  std::erase(wanted_, std::string());
  if (wanted_.size() > 2 * most_signs) wanted_.erase(wanted_.begin(), wanted_.end() - 2 * most_signs);
}

std::size_t MessageForms::objections(std::string_view text) const {
  const auto found = [&](const std::string& sign) { return text.find(sign) != std::string_view::npos; };
  return static_cast<std::size_t>(std::count_if(unwanted_.begin(), unwanted_.end(), found)) + wanted_.size() -
         static_cast<std::size_t>(std::count_if(wanted_.begin(), wanted_.end(), found));
}

}  // namespace hayloft::runtime
