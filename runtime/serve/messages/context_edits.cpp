#include "runtime/serve/messages/context_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

namespace hayloft::runtime::serve::messages {
namespace {

using openai::Field;
using openai::Json;
using openai::Value;

constexpr const char* kClearThinking = "clear_thinking_20251015";

// A number of something: {"type": "tool_uses", "value": 3}.
struct Amount {
  std::string type;
  std::int64_t value = 0;
};

// An edit of any type, with what holds where it does not say.
struct Edit {
  std::string type;
  Amount keep = {"", -1};  // -1: not said
  Amount trigger = {"input_tokens", -1};
  bool keep_all = false;
  std::set<std::string> excluded = {};  // tools
};

constexpr Field<Amount> kAmountFields[] = {
    {"type", [](const Value& value, Amount& amount) { amount.type = value.text(); }},
    {"value",
     [](const Value& value, Amount& amount) { amount.value = value.integer(0, std::numeric_limits<int>::max()); }},
};

Amount read_amount(const Value& value, std::initializer_list<Json> types) {
  Amount amount{"", -1};
  openai::read_fields<Amount>(value.object(), value.name(), value.name() + ".", {kAmountFields}, {}, amount);
  Value(value.name() + ".type", Json(amount.type)).only(types);
  if (amount.value < 0) openai::refuse(value.name() + ".value", "is needed");
  return amount;
}

void read_type(const Value& value, Edit& edit) {
  edit.type = value.text();
}

constexpr Field<Edit> kThinkingEditFields[] = {
    {"type", read_type},
    {"keep",
     [](const Value& value, Edit& edit) {
       edit.keep_all = value.json() == "all" || value.json() == Json{{"type", "all"}};
       if (!edit.keep_all) edit.keep = read_amount(value, {"thinking_turns"});
     }},
};

constexpr Field<Edit> kToolEditFields[] = {
    {"type", read_type},
    {"keep", [](const Value& value, Edit& edit) { edit.keep = read_amount(value, {"tool_uses"}); }},
    {"trigger",
     [](const Value& value, Edit& edit) {
       edit.trigger = read_amount(value, {"input_tokens", "tool_uses"});
     }},
    {"clear_at_least", [](const Value& value, Edit&) { read_amount(value, {"input_tokens"}); }},
    {"clear_tool_inputs",
     [](const Value& value, Edit&) {
       if (value.json().is_boolean()) return;
       for (const Json& each : value.list()) Value(value.name(), each).text();
     }},
    {"exclude_tools",
     [](const Value& value, Edit& edit) {
       for (const Json& each : value.list()) edit.excluded.insert(Value(value.name(), each).text());
     }},
};

constexpr Field<Edit> kCompactEditFields[] = {
    {"type", read_type},
    {"instructions", [](const Value& value, Edit&) { value.text(); }},
    {"pause_after_compaction", [](const Value& value, Edit&) { value.flag(); }},
    {"trigger", [](const Value& value, Edit& edit) { edit.trigger = read_amount(value, {"input_tokens"}); }},
};

// Counts the calls of tools, but of these.
std::int64_t calls_of(const Json& message, const std::set<std::string>& excluded) {
  if (!message["content"].is_array()) return 0;
  return std::ranges::count_if(message["content"], [&](const Json& block) {
    return block["type"] == "tool_use" && !excluded.contains(block["name"].get<std::string>());
  });
}

// Returns how many of the newest turns with thinking keep it; nothing: all do.
std::optional<std::int64_t> kept_thinking(const Value& value) {
  constexpr std::int64_t usual = 1;  // as the API has it
  Edit edit;
  openai::read_fields<Edit>(value.object(), "an edit", value.name() + ".", {kThinkingEditFields}, {}, edit);
  if (edit.keep_all) return std::nullopt;
  return edit.keep.value < 0 ? usual : edit.keep.value;
}

void check_edit(const Value& value, const Json& messages, std::size_t tokens) {
  constexpr std::int64_t usual_keep_of_tools = 3, usual_trigger_of_tools = 100'000,
                         usual_trigger_of_compaction = 150'000;  // as the API has them
  const Json& object = value.object();
  if (!object.contains("type")) value.refuse("must have a type");
  const std::string type = Value(value.name() + ".type", object["type"]).text();
  Edit edit;
  const auto read = [&](std::span<const Field<Edit>> fields) {
    openai::read_fields<Edit>(object, "an edit", value.name() + ".", {fields}, {}, edit);
  };
  const auto said = [](const Amount& amount, std::int64_t usual) { return amount.value < 0 ? usual : amount.value; };
  const auto refuse = [&](const std::string& why) {
    value.refuse(
        fmt::format("{} would change the conversation, which is not done here ({}): leave it out, or send the "
                    "conversation as it is to be read",
                    type, why));
  };
  if (type == kClearThinking) {
    kept_thinking(value);
  } else if (type == "clear_tool_uses_20250919") {
    read(kToolEditFields);
    std::int64_t uses = 0;
    for (const Json& each : messages) uses += calls_of(each, edit.excluded);
    const bool by_tokens = edit.trigger.type == "input_tokens";
    const std::int64_t reached = by_tokens ? static_cast<std::int64_t>(tokens) : uses;
    if (uses > said(edit.keep, usual_keep_of_tools) && reached >= said(edit.trigger, usual_trigger_of_tools)) {
      refuse(fmt::format("{} tools are used in {} tokens", uses, tokens));
    }
  } else if (type == "compact_20260112") {
    read(kCompactEditFields);
    if (static_cast<std::int64_t>(tokens) >= said(edit.trigger, usual_trigger_of_compaction)) {
      refuse(fmt::format("it has {} tokens", tokens));
    }
  } else {
    openai::refuse(
        value.name() + ".type",
        fmt::format("\"{}\": {}, and clear_tool_uses_20250919 and compact_20260112 while they have nothing to do, "
                    "are the edits that are known",
                    openai::shown_name(type), kClearThinking));
  }
}

}  // namespace

void clear_thinking(const Value& management, Json& chat) {
  const Json& edits = management.object().contains("edits") ? management.json()["edits"] : Json::array();
  for (std::size_t at = 0; edits.is_array() && at < edits.size(); ++at) {
    if (!edits[at].is_object() || !edits[at].contains("type") || edits[at]["type"] != kClearThinking) continue;
    std::optional<std::int64_t> left =
        kept_thinking(Value(fmt::format("{}.edits[{}]", management.name(), at), edits[at]));
    for (std::size_t i = chat.size(); left && i-- > 0;) {
      if (chat[i].contains("reasoning_content") && (*left)-- <= 0) chat[i].erase("reasoning_content");
    }
  }
}

void check_context_edits(const Value& management, const Json& messages, std::size_t tokens) {
  for (const auto& [name, edits] : management.object().items()) {
    const Value list(management.name() + "." + name, edits);
    if (name != "edits") openai::refuse_unknown(management.name(), list.name());
    if (edits.is_null()) continue;
    for (std::size_t i = 0; i < list.list().size(); ++i) {
      check_edit(Value(fmt::format("{}[{}]", list.name(), i), edits[i]), messages, tokens);
    }
  }
}

}  // namespace hayloft::runtime::serve::messages
