#include "runtime/serve/responses/items.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/serve/openai/messages.h"

namespace hayloft::runtime::serve::responses {
namespace {

using openai::Field;
using openai::Json;
using openai::Value;

struct Item {
  std::string type, role, text;
  std::string call_id, name, arguments;
  bool content = false;
};

struct ContentPart {
  std::string type, text;
};

constexpr Field<ContentPart> kItemPartFields[] = {
    {"type",
     [](const Value& value, ContentPart& part) {
       part.type = value.text();
       for (const char* known : {"input_text", "output_text", "text", "reasoning_text", "summary_text"}) {
         if (part.type == known) return;
       }
       value.refuse("parts of text alone are supported");
     }},
    {"text", [](const Value& value, ContentPart& part) { part.text = value.text(); }},
};
constexpr openai::Meaningless kMeaninglessOfContent[] = {
    {"annotations", openai::must_be::list},
    {"logprobs", openai::must_be::list},
};

// A text, or a list of parts.
std::string content_text(const Value& value) {
  if (value.json().is_string()) return value.json().get<std::string>();
  if (!value.json().is_array()) value.refuse("must be a string or a list of parts");
  std::string text;
  for (std::size_t i = 0; i < value.json().size(); ++i) {
    const Value each(fmt::format("{}[{}]", value.name(), i), value.json()[i]);
    ContentPart part;
    openai::read_fields<ContentPart>(each.object(), "a part", each.name() + ".", {kItemPartFields},
                                     kMeaninglessOfContent, part);
    if (part.type.empty() || !openai::has(each.json(), "text")) each.refuse("must have a type and a text");
    text += (i > 0 ? "\n" : "") + part.text;
  }
  return text;
}

void pass_over(const Value&, Item&) {}

constexpr Field<Item> kMessageItemFields[] = {
    {"type", pass_over},
    {"role",
     [](const Value& value, Item& item) {
       value.only({"user", "assistant", "system", "developer"});
       item.role = value.text();
     }},
    {"content",
     [](const Value& value, Item& item) {
       item.text = content_text(value);
       item.content = true;
     }},
};
constexpr Field<Item> kCallItemFields[] = {
    {"type", pass_over},
    {"call_id", [](const Value& value, Item& item) { item.call_id = value.text(); }},
    {"name", [](const Value& value, Item& item) { item.name = value.text(); }},
    {"arguments", [](const Value& value, Item& item) { item.arguments = value.text(); }},
};
constexpr Field<Item> kOutputItemFields[] = {
    {"type", pass_over},
    {"call_id", [](const Value& value, Item& item) { item.call_id = value.text(); }},
    {"output",
     [](const Value& value, Item& item) {
       item.text = content_text(value);
       item.content = true;
     }},
};
constexpr Field<Item> kReasoningItemFields[] = {
    {"type", pass_over},
    {"content", [](const Value& value, Item& item) { item.text = content_text(value); }},
    {"summary", [](const Value& value, Item&) { content_text(value); }},
};
constexpr openai::Meaningless kMeaninglessOfItems[] = {
    {"id", openai::must_be::text},
    {"status", openai::must_be::text},
    {"phase", openai::must_be::text},
};

// The turn of the assistant that an item belongs to: all that stands together of it is one message, whichever response
// it came with, as what is kept of responses is gone on from.
Json& assistant(Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant") {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  return messages.back();
}

// Adds a text in a line of its own.
void add_line(Json& text, const std::string& more) {
  std::string& all = text.get_ref<std::string&>();
  all += (all.empty() || more.empty() ? "" : "\n") + more;
}

// Adds an item of the assistant to its turn.
void add_to_turn(const Item& item, Json& messages) {
  if (item.type == "reasoning") {
    if (item.text.empty()) return;
    Json& message = assistant(messages);
    if (!message.contains("reasoning_content")) message["reasoning_content"] = "";
    add_line(message["reasoning_content"], item.text);
  } else if (item.type == "function_call") {
    assistant(messages)["tool_calls"].push_back(
        {{"id", item.call_id},
         {"type", "function"},
         {"function", {{"name", item.name}, {"arguments", item.arguments.empty() ? "{}" : item.arguments}}}});
  } else {
    add_line(assistant(messages)["content"], item.text);
  }
}

// The function of the call that a result is of: of the last turn before the results.
std::string called_name(const Json& messages, const std::string& id, const Value& item) {
  const auto turn =
      std::find_if(messages.rbegin(), messages.rend(), [](const Json& each) { return each["role"] != "tool"; });
  if (turn != messages.rend() && turn->contains("tool_calls")) {
    for (const Json& call : (*turn)["tool_calls"]) {
      if (call["id"] == id) return call["function"]["name"].get<std::string>();
    }
  }
  openai::refuse(item.name() + ".call_id", "no function_call of the turn before it has this id");
}

void add_item(const Value& value, Json& messages) {
  const Json& object = value.object();
  Item item;
  item.type = object.contains("type") ? Value(value.name() + ".type", object["type"]).text() : "message";
  const auto read = [&](std::span<const Field<Item>> fields) {
    openai::read_fields<Item>(object, "an item", value.name() + ".", {fields}, kMeaninglessOfItems, item);
  };
  if (item.type == "message") {
    read(kMessageItemFields);
    if (item.role.empty() || !item.content) value.refuse("must have a role and content");
    if (item.role == "assistant") return add_to_turn(item, messages);
    messages.push_back({{"role", item.role}, {"content", item.text}});
  } else if (item.type == "function_call") {
    read(kCallItemFields);
    if (item.name.empty() || item.call_id.empty()) value.refuse("must have a call_id, a name and arguments");
    add_to_turn(item, messages);
  } else if (item.type == "function_call_output") {
    read(kOutputItemFields);
    if (item.call_id.empty() || !item.content) value.refuse("must have a call_id and an output");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", item.call_id},
                        {"name", called_name(messages, item.call_id, value)},
                        {"content", item.text}});
  } else if (item.type == "reasoning") {
    read(kReasoningItemFields);
    add_to_turn(item, messages);
  } else {
    openai::refuse(value.name() + ".type",
                   fmt::format("\"{}\": items of message, function_call, function_call_output and reasoning are "
                               "supported",
                               openai::shown_name(item.type)));
  }
}

// Refuses calls that have no result, as the API does: the model would go on as if nothing had been called.
void require_outputs(const Json& messages) {
  std::set<std::string> answered;
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if ((*message)["role"] == "tool") answered.insert((*message)["tool_call_id"].get<std::string>());
    if (!message->contains("tool_calls")) continue;
    for (const Json& call : (*message)["tool_calls"]) {
      const std::string& id = call["id"].get_ref<const std::string&>();
      if (answered.contains(id)) continue;
      openai::refuse("input", fmt::format("No tool output found for function call {}: send an item of type "
                                          "function_call_output with this call_id",
                                          openai::shown_name(id)));
    }
  }
}

constexpr Field<Json> kResponseToolFields[] = {
    {"type", [](const Value& value, Json&) { value.only({"function"}); }},
    {"name", [](const Value& value, Json& function) { function["name"] = openai::tool_name(value); }},
    {"description", [](const Value& value, Json& function) { function["description"] = value.text(); }},
    {"parameters", [](const Value& value, Json& function) { function["parameters"] = value.object(); }},
    {"strict", [](const Value& value, Json& function) { function["strict"] = value.flag(); }},
    {"defer_loading", [](const Value& value, Json&) { value.only({false}); }},
};

}  // namespace

void add_items(const Value& input, Json& messages) {
  if (input.json().is_string()) {
    messages.push_back({{"role", "user"}, {"content", input.json()}});
  } else if (input.json().is_array()) {
    for (std::size_t i = 0; i < input.json().size(); ++i) {
      add_item(Value(fmt::format("{}[{}]", input.name(), i), input.json()[i]), messages);
    }
  } else {
    input.refuse("must be a string or a list of items");
  }
  require_outputs(messages);
}

void add_output(const Json& output, Json& messages) {
  for (const Json& each : output) {
    Item item;
    item.type = each["type"].get<std::string>();
    if (item.type == "function_call") {
      item.call_id = each["call_id"].get<std::string>();
      item.name = each["name"].get<std::string>();
      item.arguments = each["arguments"].get<std::string>();
    } else {
      for (const Json& part : each["content"]) item.text += part["text"].get<std::string>();
    }
    add_to_turn(item, messages);
  }
}

Json chat_tools(const Value& list) {
  Json tools = Json::array();
  for (std::size_t i = 0; i < list.list().size(); ++i) {
    const Value each(fmt::format("{}[{}]", list.name(), i), list.json()[i]);
    Json function = Json::object();
    openai::read_fields<Json>(each.object(), "a tool", each.name() + ".", {kResponseToolFields}, {}, function);
    if (!function.contains("name") || !openai::has(each.json(), "type")) each.refuse("must have a type and a name");
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

}  // namespace hayloft::runtime::serve::responses
