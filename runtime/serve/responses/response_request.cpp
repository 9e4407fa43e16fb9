#include "runtime/serve/responses/response_request.h"

#include <algorithm>
#include <limits>

#include "runtime/serve/openai/draft.h"
#include "runtime/serve/responses/items.h"
#include "runtime/serve/responses/response_store.h"

namespace hayloft::runtime::serve::responses {
namespace {

using openai::Draft;
using openai::Field;
using openai::Json;
using openai::Value;

// A request while its fields are read; what they are translated to.
struct ResponseDraft {
  explicit ResponseDraft(const openai::Served& served) : chat(served) {}

  Draft chat;
  const Json* input = nullptr;
  std::optional<std::string> instructions = {};
  std::optional<std::string> previous = {};
  std::optional<Json> tools = {};
  bool stored = true;
  std::vector<std::string> notes = {};
};

// The form of an answer, all in one object.
struct ResponseFormat {
  std::string type;
  const Json* schema = nullptr;
};

constexpr Field<ResponseFormat> kResponseFormatFields[] = {
    {"type", [](const Value& value, ResponseFormat& format) { format.type = value.text(); }},
    {"name", [](const Value& value, ResponseFormat&) { value.text(); }},
    {"description", [](const Value& value, ResponseFormat&) { value.text(); }},
    {"schema", [](const Value& value, ResponseFormat& format) { format.schema = &value.json(); }},
    {"strict", [](const Value& value, ResponseFormat&) { value.flag(); }},
};

void read_response_format(const Value& value, ResponseDraft& draft) {
  ResponseFormat format;
  openai::read_fields<ResponseFormat>(value.object(), value.name(), value.name() + ".", {kResponseFormatFields}, {},
                                      format);
  if (format.schema != nullptr && format.type != "json_schema") {
    openai::refuse(value.name() + ".schema", "comes with the type json_schema");
  }
  if (format.type == "json_schema") {
    if (format.schema == nullptr) openai::refuse(value.name() + ".schema", "is needed");
    openai::take_schema(Value(value.name() + ".schema", *format.schema), *format.schema, draft.chat);
  } else if (format.type == "json_object") {
    openai::take_any_object(value, draft.chat);
  } else if (format.type != "text") {
    openai::refuse(value.name() + ".type", "must be text, json_object or json_schema");
  }
}

void read_response_choice(const Value& value, ResponseDraft& draft) {
  const Json& choice = value.json();
  if (choice.is_object()) {
    const bool named = choice.size() == 2 && choice.contains("type") && choice["type"] == "function" &&
                       choice.contains("name") && choice["name"].is_string() && choice["name"] != "";
    if (!named) value.refuse("an object names a function: {\"type\": \"function\", \"name\": ...}");
    draft.chat.call_of = choice["name"].get<std::string>();
    draft.chat.call_wanted = true;
    return;
  }
  draft.chat.call_wanted = choice == "required";
  if (!draft.chat.call_wanted) value.only({"auto", "none"});
  draft.chat.tools_wanted = choice != "none";
}

constexpr Field<ResponseDraft> kTextChoiceFields[] = {
    {"format", read_response_format},
    {"verbosity",
     [](const Value& value, ResponseDraft&) {
       value.only({"low", "medium", "high"});
     }},
};

constexpr Field<ResponseDraft> kReasoningChoiceFields[] = {
    {"effort",
     [](const Value& value, ResponseDraft& draft) { draft.chat.variables["reasoning_effort"] = value.text(); }},
    {"summary",
     [](const Value& value, ResponseDraft& draft) {
       value.only({"auto", "concise", "detailed"});
       draft.notes.push_back(value.name() + ": none is made: the reasoning itself is told");
     }},
};

// Takes what answers here never have, so that there is nothing to include: encrypted reasoning, images, built-in tools.
void read_include(const Value& value, ResponseDraft&) {
  for (const Json& each : value.list()) {
    Value(value.name(), each)
        .only({"reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
               "web_search_call.action.sources", "message.input_image.image_url",
               "computer_call_output.output.image_url", "code_interpreter_call.outputs"});
  }
}

constexpr Field<ResponseDraft> kResponseFields[] = {
    {"model", [](const Value& value, ResponseDraft& draft) { openai::read_model(value, draft.chat); }},
    {"input", [](const Value& value, ResponseDraft& draft) { draft.input = &value.json(); }},
    {"instructions", [](const Value& value, ResponseDraft& draft) { draft.instructions = value.text(); }},
    {"previous_response_id", [](const Value& value, ResponseDraft& draft) { draft.previous = value.text(); }},
    {"max_output_tokens",
     [](const Value& value, ResponseDraft& draft) {
       draft.chat.max_completion_tokens = value.integer(1, std::numeric_limits<int>::max());
     }},
    {"temperature",
     [](const Value& value, ResponseDraft& draft) { draft.chat.pattern.sampling.temperature = value.number(0, 2); }},
    {"top_p",
     [](const Value& value, ResponseDraft& draft) {
       draft.chat.pattern.sampling.top_p = std::max(value.number(0, 1), std::numeric_limits<float>::min());
     }},
    {"stream", [](const Value& value, ResponseDraft& draft) { draft.chat.request.stream = value.flag(); }},
    {"store", [](const Value& value, ResponseDraft& draft) { draft.stored = value.flag(); }},
    {"tools", [](const Value& value, ResponseDraft& draft) { draft.tools = chat_tools(value); }},
    {"tool_choice", read_response_choice},
    {"text",
     [](const Value& value, ResponseDraft& draft) {
       openai::read_fields<ResponseDraft>(value.object(), value.name(), value.name() + ".", {kTextChoiceFields}, {},
                                          draft);
     }},
    {"reasoning",
     [](const Value& value, ResponseDraft& draft) {
       openai::read_fields<ResponseDraft>(value.object(), value.name(), value.name() + ".", {kReasoningChoiceFields},
                                          {}, draft);
     }},
    {"parallel_tool_calls",
     [](const Value& value, ResponseDraft& draft) { draft.chat.one_call_field = value.flag() ? "" : value.name(); }},
    {"truncation", [](const Value& value, ResponseDraft&) { value.only({"disabled"}); }},
    {"background", [](const Value& value, ResponseDraft&) { value.only({false}); }},
    {"include", read_include},
    {"top_logprobs", [](const Value& value, ResponseDraft&) { value.only({0}); }},
    {"stream_options",
     [](const Value& value, ResponseDraft&) {
       value.only({Json::object(), Json{{"include_obfuscation", false}}});
     }},
};

constexpr openai::Meaningless kMeaninglessResponseFields[] = {
    {"user", openai::must_be::text},
    {"metadata", openai::must_be::labels},
    {"safety_identifier", openai::must_be::text},
    {"prompt_cache_key", openai::must_be::text},
    {"prompt_cache_retention", openai::must_be::text},
    {"service_tier", openai::must_be::text},
};

// Throws the error with the name that was sent, where chats call the field otherwise.
[[noreturn]] void refuse_as_sent(const openai::BadRequest& error) {
  constexpr std::pair<const char*, const char*> names[] = {{"messages", "input"},
                                                           {"reasoning_effort", "reasoning.effort"}};
  for (const auto& [chat, sent] : names) {
    if (error.field() != chat) continue;
    const std::string message = error.what();  // which begins with the field
    throw openai::BadRequest(error.status(), sent + message.substr(error.field().size()), sent, error.code());
  }
  throw openai::BadRequest(error);
}

// The conversation so far, and what the request puts in.
Json messages_of(const ResponseDraft& draft) {
  Json messages = Json::array();
  if (draft.instructions && !draft.instructions->empty()) {
    messages.push_back({{"role", "system"}, {"content", *draft.instructions}});
  }
  if (draft.previous) {
    ResponseStore* const store = draft.chat.served.responses;
    Json earlier = store ? store->find(*draft.previous) : Json();
    if (earlier.is_null()) {
      throw openai::BadRequest(404, "previous_response_id: there is no such response, or not any more",
                               "previous_response_id", "previous_response_not_found");
    }
    for (Json& message : earlier) messages.push_back(std::move(message));
  }
  if (draft.input == nullptr) openai::refuse("input", "a text or a list of items is needed");
  add_items(Value("input", *draft.input), messages);
  return messages;
}

}  // namespace

openai::Request response_request(std::string_view body, const openai::Served& served) {
  const Json object = openai::parse_object(body);
  ResponseDraft draft(served);
  Draft& chat = draft.chat;
  chat.request.style = openai::Style::chat;
  chat.request.api = openai::Api::responses;
  openai::read_fields<ResponseDraft>(object, "/v1/responses", "", {kResponseFields}, kMeaninglessResponseFields, draft);
  openai::settle(chat);
  const Json messages = messages_of(draft);
  if (messages.empty()) openai::refuse("input", "is empty: there is nothing to go on from");
  chat.messages = &messages;
  if (draft.tools) chat.tools = &*draft.tools;
  try {
    openai::finish_chat(chat);
  } catch (const openai::BadRequest& error) {
    refuse_as_sent(error);
  }
  for (std::vector<std::string>& notes : chat.request.notes) {
    notes.insert(notes.end(), draft.notes.begin(), draft.notes.end());
  }
  openai::ResponseTurn turn;
  turn.store = draft.stored ? served.responses : nullptr;
  const bool instructed = draft.instructions && !draft.instructions->empty();
  for (std::size_t i = instructed ? 1 : 0; i < messages.size(); ++i) turn.messages.push_back(messages[i]);
  turn.asked = object;
  chat.request.turn = std::make_shared<const openai::ResponseTurn>(std::move(turn));
  return std::move(chat.request);
}

}  // namespace hayloft::runtime::serve::responses
