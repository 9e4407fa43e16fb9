#include "runtime/serve/openai/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace hayloft::runtime::serve::openai {
namespace {

constexpr std::size_t kMostOthers = 8;  // the template is tried without each

// A part of a content.
struct Part {
  std::string text;
  bool typed = false;
};

// "input_text" and "output_text" are what the same is called among the items of another endpoint.
constexpr Field<Part> kPartFields[] = {
    {"type",
     [](const Value& value, Part& part) {
       part.typed = value.json() == "text" || value.json() == "input_text" || value.json() == "output_text";
       if (!part.typed) value.refuse("only parts of type \"text\" are supported");
     }},
    {"text", [](const Value& value, Part& part) { part.text = value.text(); }},
};
constexpr Meaningless kMeaninglessOfParts[] = {
    {"cache_control", must_be::cache_mark},
    {"annotations", must_be::list},
};

void read_content(const Value& value, Json& message) {
  Json& content = message["content"];
  if (value.json().is_string()) {
    content = value.json();
    return;
  }
  if (!value.json().is_array()) value.refuse("must be a string or a list of parts");
  content = value.json().empty() ? Json("") : Json::array();
  for (std::size_t i = 0; i < value.json().size(); ++i) {
    const Value each(fmt::format("{}[{}]", value.name(), i), value.json()[i]);
    Part part;
    read_fields<Part>(each.object(), "a part", each.name() + ".", {kPartFields}, kMeaninglessOfParts, part);
    if (!part.typed || !has(each.json(), "text")) each.refuse("must have a type, \"text\", and a text");
    content.push_back({{"type", "text"}, {"text", part.text}});
  }
}

void read_role(const Value& value, Json& message) {
  message["role"] = value.text();
}

struct Nothing {};

// The fields of a tool, as the API has it; a template may write more.
constexpr Field<Nothing> kFunctionFields[] = {
    {"name", [](const Value& value, Nothing&) { tool_name(value); }},
    {"description", [](const Value& value, Nothing&) { value.text(); }},
    {"parameters", [](const Value& value, Nothing&) { value.object(); }},
    {"strict", [](const Value& value, Nothing&) { value.flag(); }},
};

constexpr Field<Nothing> kToolFields[] = {
    {"type", [](const Value& value, Nothing&) { value.only({"function"}); }},
    {"function", [](const Value& value, Nothing&) { value.object(); }},
};

constexpr Field<Nothing> kCalledFields[] = {
    {"name", [](const Value& value, Nothing&) { value.text(); }},
    {"arguments",
     [](const Value& value, Nothing&) {
       if (!value.json().is_object()) value.text();
     }},
};

constexpr Field<Nothing> kCallFields[] = {
    {"id", [](const Value& value, Nothing&) { value.text(); }},
    {"type", [](const Value& value, Nothing&) { value.only({"function"}); }},
    {"function",
     [](const Value& value, Nothing& nothing) {
       read_fields<Nothing>(value.object(), "a call", value.name() + ".", {kCalledFields}, {}, nothing);
       if (!has(value.json(), "name")) value.refuse("must have a name");
     }},
};
constexpr Meaningless kMeaninglessOfCalls[] = {{"index", must_be::integer}};  // of a stream it was put together from

void read_calls(const Value& value, Json& message) {
  Nothing nothing;
  for (std::size_t i = 0; i < value.list().size(); ++i) {
    const Value each(fmt::format("{}[{}]", value.name(), i), value.json()[i]);
    read_fields<Nothing>(each.object(), "a call", each.name() + ".", {kCallFields}, kMeaninglessOfCalls, nothing);
    if (!has(each.json(), "function")) each.refuse("must have a function");
  }
  if (!value.json().empty()) message["tool_calls"] = value.json();
}

void pass_on(const Value& value, Json& message) {
  message[value.name().substr(value.name().rfind('.') + 1)] = value.text();
}

void refuse_unless_empty(const Value& value, Json&) {
  value.only({"", Json::array()});
}

// The template may write any of them; the names in calls and results and the reasoning of earlier turns it may leave
// out as well.
constexpr Field<Json> kMessageFields[] = {
    {"role", read_role},       {"content", read_content}, {"tool_calls", read_calls},
    {"tool_call_id", pass_on}, {"name", pass_on},         {"reasoning_content", pass_on},
    {"reasoning", pass_on},    {"thinking", pass_on},     {"refusal", refuse_unless_empty},
};
constexpr Meaningless kMeaninglessOfMessages[] = {
    {"annotations", must_be::list},
    {"cache_control", must_be::cache_mark},
};

Json checked_message(const Value& value, const ChatTemplate& chat_template) {
  Json message = Json::object();
  const auto known = [](const std::string& name) {
    return std::ranges::any_of(kMessageFields, [&](const Field<Json>& each) { return name == each.name; });
  };
  for (const auto& [name, field] : value.object().items()) {
    const Value each(value.name() + "." + name, field);
    if (!known(name) && chat_template.names(name)) {
      message[name] = field;
    } else {
      read_field<Json>(name, each, "a message", {kMessageFields}, kMeaninglessOfMessages, message);
    }
  }
  if (!message.contains("role")) value.refuse("must have a role and content");
  // "developer" is the newer name of "system", but to templates that know both.
  if (message["role"] == "developer" && !chat_template.names("developer")) message["role"] = "system";
  if (!message.contains("content")) {  // an assistant may have called tools alone
    if (message["role"] != "assistant") value.refuse("must have a role and content");
    message["content"] = "";
  }
  return message;
}

// Refuses results of calls that nobody made and calls that have no result, as the API does: the model would go on as if
// something else had been called, or nothing. What has no id cannot be told.
void require_results(const Json& messages) {
  std::set<std::string> called;             // by the last message that is no result
  std::map<std::string, std::string> open;  // the field of each call that has no result yet, by its id
  const auto require_none_open = [&] {
    if (open.empty()) return;
    const auto& [id, field] = *open.begin();
    refuse(field, fmt::format("the call \"{}\" has no result: send a message of role \"tool\" with this tool_call_id "
                              "behind it",
                              shown_name(id)));
  };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (message["role"] == "tool") {
      if (!message.contains("tool_call_id")) continue;
      const std::string& id = message["tool_call_id"].get_ref<const std::string&>();
      if (!called.contains(id)) {
        refuse(fmt::format("messages[{}].tool_call_id", i),
               fmt::format("\"{}\": no call of the turn before it has this id", shown_name(id)));
      }
      open.erase(id);
      continue;
    }
    require_none_open();
    called.clear();
    const Json calls = message.value("tool_calls", Json::array());
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const Json id = calls[k].value("id", Json());
      if (!id.is_string()) continue;
      called.insert(id.get<std::string>());
      open.emplace(id.get<std::string>(), fmt::format("messages[{}].tool_calls[{}].id", i, k));
    }
  }
  require_none_open();
}

}  // namespace

Json checked_messages(const Json& list, const ChatTemplate& chat_template) {
  Json messages = Json::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    messages.push_back(checked_message(Value(fmt::format("messages[{}]", i), list[i]), chat_template));
  }
  require_results(messages);
  return messages;
}

std::string tool_name(const Value& value) {
  const auto ends_it = [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == 0x7F ||
           std::string_view(R"("\<>[]{})").find(c) != std::string_view::npos;
  };
  std::string name = value.text();
  if (name.empty() || std::ranges::any_of(name, ends_it)) {
    value.refuse("must be a name, not empty and without white space, quotes, backslashes and brackets");
  }
  return name;
}

std::vector<std::string> check_tools(const Json& list) {
  std::vector<std::string> others;
  std::map<std::string, const Json*> named;  // definitions
  Nothing nothing;
  const auto check = [&](const Value& value, std::span<const Field<Nothing>> fields) {
    for (const auto& [name, field] : value.object().items()) {
      const auto known = [&name = name](const Field<Nothing>& each) { return name == each.name; };
      if (std::ranges::any_of(fields, known)) {
        read_field<Nothing>(name, Value(value.name() + "." + name, field), "a tool", {fields}, {}, nothing);
      } else if (std::ranges::find(others, name) == others.end()) {
        others.push_back(name);
        if (others.size() > kMostOthers) value.refuse("has too many fields that the API does not know");
      }
    }
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Value tool(fmt::format("tools[{}]", i), list[i]);
    check(tool, kToolFields);
    if (!has(tool.json(), "function")) tool.refuse("must have a function");
    const Value function(tool.name() + ".function", tool.json()["function"]);
    check(function, kFunctionFields);
    if (!has(function.json(), "name")) function.refuse("must have a name");
    const auto& name = function.json()["name"].get_ref<const std::string&>();
    const Json& first = *named.emplace(name, &tool.json()).first->second;
    if (first != tool.json()) refuse("tools", fmt::format("two of them are called \"{}\"", shown_name(name)));
  }
  return others;
}

}  // namespace hayloft::runtime::serve::openai
