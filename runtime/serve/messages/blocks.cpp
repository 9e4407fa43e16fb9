#include "runtime/serve/messages/blocks.h"

#include <fmt/format.h>

#include <map>

#include "runtime/serve/openai/messages.h"

namespace hayloft::runtime::serve::messages {
namespace {

using openai::Field;
using openai::Json;
using openai::Value;

// A block of a message, of whatever type.
struct Block {
  std::string type;
  std::string text;               // of text and thinking
  std::string id, name;           // of a call; of a result the id of its call
  const Json* input = nullptr;    // of a call
  const Json* content = nullptr;  // of a result
  bool error = false;             // the result is one
};

constexpr openai::Meaningless kMeaninglessOfBlocks[] = {
    {"cache_control", openai::must_be::cache_mark},
    {"signature", openai::must_be::text},
};

constexpr Field<Block> kTextBlockFields[] = {
    {"type", [](const Value&, Block&) {}},
    {"text", [](const Value& value, Block& block) { block.text = value.text(); }},
    {"citations", [](const Value& value, Block&) { value.only({Json::array()}); }},
};

constexpr Field<Block> kThinkingFields[] = {
    {"type", [](const Value&, Block&) {}},
    {"thinking", [](const Value& value, Block& block) { block.text = value.text(); }},
};

constexpr Field<Block> kUseFields[] = {
    {"type", [](const Value&, Block&) {}},
    {"id", [](const Value& value, Block& block) { block.id = value.text(); }},
    {"name", [](const Value& value, Block& block) { block.name = value.text(); }},
    {"input", [](const Value& value, Block& block) { block.input = &value.object(); }},
    {"caller",
     [](const Value& value, Block&) {
       value.only({Json{{"type", "direct"}}});
     }},
};

constexpr Field<Block> kResultFields[] = {
    {"type", [](const Value&, Block&) {}},
    {"tool_use_id", [](const Value& value, Block& block) { block.id = value.text(); }},
    {"content", [](const Value& value, Block& block) { block.content = &value.json(); }},
    {"is_error", [](const Value& value, Block& block) { block.error = value.flag(); }},
};

Block read_block(const Value& value) {
  Block block;
  const Json& object = value.object();
  if (!object.contains("type") || !object["type"].is_string()) value.refuse("must have a type");
  block.type = object["type"].get<std::string>();
  const std::string prefix = value.name() + ".";
  const auto read = [&](std::span<const Field<Block>> fields) {
    openai::read_fields<Block>(object, "a block", prefix, {fields}, kMeaninglessOfBlocks, block);
  };
  const auto require = [&](const char* field) {
    if (!object.contains(field) || object[field].is_null()) value.refuse(fmt::format("must have \"{}\"", field));
  };
  if (block.type == "text") {
    read(kTextBlockFields);
    require("text");
  } else if (block.type == "thinking") {
    read(kThinkingFields);
    require("thinking");
  } else if (block.type == "tool_use") {
    read(kUseFields);
    for (const char* field : {"id", "name", "input"}) require(field);
  } else if (block.type == "tool_result") {
    read(kResultFields);
    require("tool_use_id");
  } else {
    openai::refuse(prefix + "type",
                   fmt::format("\"{}\": blocks of text, thinking, tool_use and tool_result are supported",
                               openai::shown_name(block.type)));
  }
  return block;
}

std::vector<Block> read_blocks(const Value& value) {
  std::vector<Block> blocks;
  if (value.json().is_string()) {
    blocks.push_back({"text", value.json().get<std::string>(), {}, {}});
    return blocks;
  }
  if (!value.json().is_array()) value.refuse("must be a string or a list of blocks");
  for (std::size_t i = 0; i < value.json().size(); ++i) {
    blocks.push_back(read_block(Value(fmt::format("{}[{}]", value.name(), i), value.json()[i])));
  }
  return blocks;
}

// The text of blocks that must be nothing else.
std::string text_of(const Value& value) {
  std::string text;
  bool first = true;
  const std::vector<Block> blocks = read_blocks(value);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].type != "text") {
      openai::refuse(fmt::format("{}[{}].type", value.name(), i), "blocks of text alone are supported here");
    }
    text += (std::exchange(first, false) ? "" : "\n") + blocks[i].text;
  }
  return text;
}

void add_text(std::string& text, const std::string& more) {
  text += (text.empty() || more.empty() ? "" : "\n") + more;
}

// Turns messages one by one into those of a chat. Several of one role that stand together are one turn, as the API has
// it: many templates take turns that alternate alone.
class Translator {
 public:
  void add(const Value& message) {
    const Json& object = message.object();
    for (const auto& [name, value] : object.items()) {
      if (name != "role" && name != "content") openai::refuse_unknown("a message", message.name() + "." + name);
    }
    if (!object.contains("role") || !object.contains("content")) message.refuse("must have a role and content");
    const std::string role = Value(message.name() + ".role", object["role"]).text();
    const Value content(message.name() + ".content", object["content"]);
    if (role == "assistant" && !messages.empty() && messages.back()["role"] != "assistant") {
      require_results();
      names_.clear();
    }
    if (role == "assistant") return add_assistant(content);
    if (role != "user") openai::refuse(message.name() + ".role", "must be user or assistant");
    add_user(content);
  }
  // Refuses calls that have no result, as the API does: the model would go on as if nothing had been called.
  void require_results() const {
    if (open_.empty()) return;
    const auto& [id, field] = *open_.begin();
    openai::refuse(field, fmt::format("the call \"{}\" has no result: send a tool_result with this tool_use_id in the "
                                      "next message",
                                      openai::shown_name(id)));
  }
  Json messages = Json::array();

 private:
  void add_assistant(const Value& content) {
    Json message = last_turn("assistant");
    std::string text = message["content"], thinking = message.value("reasoning_content", "");
    Json calls = message.value("tool_calls", Json::array());
    const std::vector<Block> blocks = read_blocks(content);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      if (block.type == "text") add_text(text, block.text);
      if (block.type == "thinking") add_text(thinking, block.text);
      if (block.type == "tool_result") content.refuse("a tool_result is the user's");
      if (block.type != "tool_use") continue;
      names_[block.id] = block.name;
      open_.emplace(block.id, fmt::format("{}[{}].id", content.name(), i));
      calls.push_back({{"id", block.id},
                       {"type", "function"},
                       {"function", {{"name", block.name}, {"arguments", openai::dumped(*block.input)}}}});
    }
    message["content"] = text;
    if (!thinking.empty()) message["reasoning_content"] = thinking;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages.push_back(std::move(message));
  }

  void add_user(const Value& content) {
    bool said = content.json().is_string() || (!messages.empty() && messages.back()["role"] == "user");
    std::string text = last_turn("user")["content"];
    const std::vector<Block> blocks = read_blocks(content);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      const std::string name = fmt::format("{}[{}]", content.name(), i);
      if (block.type == "text") {
        add_text(text, block.text);
        said = true;
      } else if (block.type == "tool_result") {
        std::string result = block.content ? text_of(Value(name + ".content", *block.content)) : std::string();
        if (block.error) result = "Error: " + result;
        const auto called = names_.find(block.id);
        if (called == names_.end()) {
          openai::refuse(name + ".tool_use_id", "no tool_use of the turn before it has this id");
        }
        open_.erase(block.id);
        messages.push_back(
            {{"role", "tool"}, {"tool_call_id", block.id}, {"name", called->second}, {"content", result}});
      } else {
        openai::refuse(name + ".type", "is the assistant's");
      }
    }
    if (said) messages.push_back({{"role", "user"}, {"content", text}});
    if (blocks.empty()) content.refuse("is empty");
  }

  // Takes the last message where it is of this role, to go on with; else begins one.
  Json last_turn(const char* role) {
    Json turn{{"role", role}, {"content", ""}};
    if (!messages.empty() && messages.back()["role"] == role) {
      turn = std::move(messages.back());
      messages.erase(messages.size() - 1);
    }
    return turn;
  }

  std::map<std::string, std::string> names_;  // of tools, by the ids of the last assistant's calls
  std::map<std::string, std::string> open_;   // the fields of calls that have no result yet, likewise
};

struct Tool {
  Json function = Json::object();
};

constexpr Field<Tool> kMessageToolFields[] = {
    {"name", [](const Value& value, Tool& tool) { tool.function["name"] = openai::tool_name(value); }},
    {"description", [](const Value& value, Tool& tool) { tool.function["description"] = value.text(); }},
    {"input_schema", [](const Value& value, Tool& tool) { tool.function["parameters"] = value.object(); }},
    {"type", [](const Value& value, Tool&) { value.only({"custom"}); }},
    {"strict", [](const Value& value, Tool& tool) { tool.function["strict"] = value.flag(); }},
    {"defer_loading", [](const Value& value, Tool&) { value.only({false}); }},
};
constexpr openai::Meaningless kMeaninglessOfTools[] = {
    {"cache_control", openai::must_be::cache_mark},
    {"eager_input_streaming", openai::must_be::flag},
};

}  // namespace

Json chat_messages(const Value& list) {
  Translator translator;
  for (std::size_t i = 0; i < list.list().size(); ++i) {
    translator.add(Value(fmt::format("{}[{}]", list.name(), i), list.json()[i]));
  }
  translator.require_results();
  return std::move(translator.messages);
}

std::string system_text(const Value& value) {
  return text_of(value);
}

Json chat_tools(const Value& list) {
  Json tools = Json::array();
  for (std::size_t i = 0; i < list.list().size(); ++i) {
    const Value each(fmt::format("{}[{}]", list.name(), i), list.json()[i]);
    Tool tool;
    openai::read_fields<Tool>(each.object(), "a tool", each.name() + ".", {kMessageToolFields}, kMeaninglessOfTools,
                              tool);
    if (!tool.function.contains("name")) each.refuse("must have a name");
    if (!tool.function.contains("parameters")) each.refuse("must have an input_schema");
    tools.push_back({{"type", "function"}, {"function", std::move(tool.function)}});
  }
  return tools;
}

}  // namespace hayloft::runtime::serve::messages
