#include <fmt/format.h>

#include <algorithm>

#include "runtime/serve/openai/conversation.h"
#include "runtime/serve/openai/draft.h"

// Requests of /v1/chat/completions.
namespace hayloft::runtime::serve::openai {
namespace {

constexpr int kMostTopLogprobs = 20;
constexpr const char* kMessages = "messages";

// The schema of an answer, and what it is called, which changes nothing.
struct SchemaFormat {
  std::string type;
  const Json* schema = nullptr;
};

constexpr Field<SchemaFormat> kSchemaFields[] = {
    {"name", [](const Value& value, SchemaFormat&) { value.text(); }},
    {"description", [](const Value& value, SchemaFormat&) { value.text(); }},
    {"schema", [](const Value& value, SchemaFormat& format) { format.schema = &value.json(); }},
    {"strict", [](const Value& value, SchemaFormat&) { value.flag(); }},
};

constexpr Field<SchemaFormat> kFormatFields[] = {
    {"type", [](const Value& value, SchemaFormat& format) { format.type = value.text(); }},
    {"json_schema",
     [](const Value& value, SchemaFormat& format) {
       read_fields<SchemaFormat>(value.object(), value.name(), value.name() + ".", {kSchemaFields}, {}, format);
       if (format.schema == nullptr) value.refuse("must have a schema");
     }},
};

void read_format(const Value& value, Draft& draft) {
  SchemaFormat format;
  read_fields<SchemaFormat>(value.object(), value.name(), value.name() + ".", {kFormatFields}, {}, format);
  if (format.type == "text" || format.type == "json_object") {
    if (format.schema) refuse(value.name() + ".json_schema", "comes with the type json_schema");
    if (format.type == "json_object") take_any_object(value, draft);
  } else if (format.type == "json_schema") {
    if (format.schema == nullptr) refuse(value.name() + ".json_schema", "is needed");
    take_schema(Value(value.name() + ".json_schema.schema", *format.schema), *format.schema, draft);
  } else {
    refuse(value.name() + ".type", "must be text, json_object or json_schema");
  }
}

// "auto", "none", "required", or {"type": "function", "function": {"name": ...}}.
void read_tool_choice(const Value& value, Draft& draft) {
  const Json& choice = value.json();
  if (choice.is_object()) {
    const bool named = choice.size() == 2 && choice.contains("type") && choice["type"] == "function" &&
                       choice.contains("function") && choice["function"].is_object() &&
                       choice["function"].size() == 1 && choice["function"].contains("name") &&
                       choice["function"]["name"].is_string() && choice["function"]["name"] != "";
    if (!named) value.refuse("an object names a function: {\"type\": \"function\", \"function\": {\"name\": ...}}");
    draft.call_of = choice["function"]["name"].get<std::string>();
    draft.call_wanted = true;
    return;
  }
  if (choice == "required") {
    draft.call_wanted = true;
    return;
  }
  value.only({"auto", "none"});
  draft.tools_wanted = choice == "auto";
}

void read_variables(const Value& value, Draft& draft) {
  for (const auto& [name, variable] : value.object().items()) {
    if (name == kMessages || name == "tools") value.refuse(name + " stand beside it in the request, not in it");
    draft.variables[name] = variable;
  }
}

constexpr Field<Draft> kChatFields[] = {
    {kMessages, [](const Value& value, Draft& draft) { draft.messages = &value.list(); }},
    {"max_completion_tokens",
     [](const Value& value, Draft& draft) {
       draft.max_completion_tokens = value.integer(1, std::numeric_limits<int>::max());
     }},
    {"logprobs", [](const Value& value, Draft& draft) { draft.logprobs = value.flag(); }},
    {"top_logprobs", [](const Value& value, Draft& draft) { draft.top_logprobs = value.integer(0, kMostTopLogprobs); }},

    // Fields that the template writes besides the messages.
    {"tools", [](const Value& value, Draft& draft) { draft.tools = &value.list(); }},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls",
     [](const Value& value, Draft& draft) { draft.one_call_field = value.flag() ? "" : value.name(); }},
    {"documents", [](const Value& value, Draft& draft) { draft.variables["documents"] = value.list(); }},
    {"reasoning_effort", [](const Value& value, Draft& draft) { draft.variables["reasoning_effort"] = value.text(); }},
    {"chat_template_kwargs", read_variables},
    {"add_generation_prompt", [](const Value& value, Draft& draft) { draft.generation_prompt = value.flag(); }},
    {"continue_final_message", [](const Value& value, Draft&) { value.only({false}); }},

    // The form of the answer.
    {"response_format", read_format},
    {"modalities", [](const Value& value, Draft&) { value.only({Json::array({"text"})}); }},
    {"functions", [](const Value& value, Draft&) { value.only({Json::array()}); }},
    {"function_call",
     [](const Value& value, Draft&) {
       value.only({"auto", "none"});
     }},
};

// Tools have no part in where reasoning ends.
void count_reasoning(Draft& draft) {
  AnswerForm form = draft.request.form;
  if (form.reasons()) {
    form.tools.clear();
    draft.pattern.reasoning = std::make_shared<const AnswerForm>(std::move(form));
  } else if (draft.pattern.most_reasoning > 0) {
    refuse(
        draft.most_reasoning_field,
        "the model's chat template does not show how reasoning ends: leave thinking out, or ask for the type adaptive");
  }
}

}  // namespace

void finish_chat(Draft& draft) {
  const Conversation written = write_conversation(draft);
  draft.request.form = written.form;
  draft.pattern.runs = !written.form.plain();
  count_reasoning(draft);
  add_constraint(draft);
  std::vector<std::int32_t> tokens = prompt_tokens(written.text, draft, written.guard);
  const std::size_t opening = draft.served.tokenizer.encode(written.opening, false).size();
  draft.pattern.conversation = tokens.size() - std::min(tokens.size(), opening);
  add_generations(draft, std::move(tokens), {}, kMessages);
  for (std::vector<std::string>& notes : draft.request.notes) {
    notes.insert(notes.end(), written.notes.begin(), written.notes.end());
  }
}

Request chat_request(std::string_view body, const Served& served) {
  const Json object = parse_object(body);
  Draft draft(served);
  draft.request.style = Style::chat;
  read_fields<Draft>(object, "/v1/chat/completions", "", {kChatFields, common_fields()}, meaningless_fields(), draft);
  settle(draft);
  if (draft.max_tokens == 0) refuse("max_tokens", "must be an integer above 0");
  if (draft.top_logprobs.value_or(0) > 0 && !draft.logprobs) refuse("top_logprobs", "comes with logprobs: true");
  if (draft.logprobs) draft.request.logprobs = static_cast<int>(draft.top_logprobs.value_or(0));
  draft.pattern.logprobs = draft.request.logprobs;
  finish_chat(draft);
  return std::move(draft.request);
}

}  // namespace hayloft::runtime::serve::openai
