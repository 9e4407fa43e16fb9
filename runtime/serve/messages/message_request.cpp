#include "runtime/serve/messages/message_request.h"

#include <algorithm>
#include <limits>

#include "runtime/serve/messages/blocks.h"
#include "runtime/serve/openai/draft.h"

namespace hayloft::runtime::serve::messages {
namespace {

using openai::Draft;
using openai::Field;
using openai::Json;
using openai::Value;

// A request while its fields are read; what they are translated to.
struct MessageDraft {
  explicit MessageDraft(const openai::Served& served) : chat(served) {}

  Draft chat;
  std::optional<std::string> system = {};
  std::optional<Json> messages = {};
  std::optional<Json> tools = {};
};

constexpr Field<MessageDraft> kChoiceFields[] = {
    {"type",
     [](const Value& value, MessageDraft& draft) {
       const std::string type = value.text();
       if (type != "any" && type != "tool") value.only({"auto", "none", "any", "tool"});
       draft.chat.tools_wanted = type != "none";
       draft.chat.call_wanted = type == "any" || type == "tool";
     }},
    {"name", [](const Value& value, MessageDraft& draft) { draft.chat.call_of = value.text(); }},
    {"disable_parallel_tool_use",
     [](const Value& value, MessageDraft& draft) { draft.chat.one_call_field = value.flag() ? value.name() : ""; }},
};

// Reasoning is the template's to ask for: where it knows of it, or reasons always.
constexpr Field<MessageDraft> kThinkingChoiceFields[] = {
    {"type",
     [](const Value& value, MessageDraft& draft) {
       const openai::Served& served = draft.chat.served;
       const bool wanted = value.text() != "disabled";
       if (wanted && value.json() != "enabled" && value.json() != "adaptive") {
         value.refuse("must be enabled, adaptive or disabled");
       }
       if (served.chat_template == nullptr) return;
       if (served.chat_template->names("enable_thinking")) {
         draft.chat.variables["enable_thinking"] = wanted;
       } else if (wanted && !served.chat_template->mentions("</think>") &&
                  !served.chat_template->mentions("<|channel|>")) {
         value.refuse("the model's chat template knows no reasoning: leave it out, or disable it");
       }
     }},
    {"budget_tokens", [](const Value& value, MessageDraft&) { value.integer(1, std::numeric_limits<int>::max()); }},
    {"display",
     [](const Value& value, MessageDraft&) {
       value.only({"summarized", "full"});
     }},
};

constexpr Field<MessageDraft> kMessageFormatFields[] = {
    {"type", [](const Value& value, MessageDraft&) { value.only({"json_schema"}); }},
    {"schema", [](const Value& value, MessageDraft& draft) { openai::take_schema(value, value.json(), draft.chat); }},
};

constexpr Field<MessageDraft> kOutputFields[] = {
    {"format",
     [](const Value& value, MessageDraft& draft) {
       openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kMessageFormatFields}, {},
                                         draft);
     }},
};

constexpr Field<MessageDraft> kMessageFields[] = {
    {"model", [](const Value& value, MessageDraft& draft) { openai::read_model(value, draft.chat); }},
    {"max_tokens",
     [](const Value& value, MessageDraft& draft) {
       draft.chat.max_completion_tokens = value.integer(1, std::numeric_limits<int>::max());
     }},
    {"messages",
     [](const Value& value, MessageDraft& draft) {
       if (value.list().empty()) value.refuse("a list of messages is needed");
       draft.messages = chat_messages(value);
     }},
    {"system", [](const Value& value, MessageDraft& draft) { draft.system = system_text(value); }},
    {"tools", [](const Value& value, MessageDraft& draft) { draft.tools = chat_tools(value); }},
    {"tool_choice",
     [](const Value& value, MessageDraft& draft) {
       openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kChoiceFields}, {}, draft);
     }},
    {"output_config",
     [](const Value& value, MessageDraft& draft) {
       openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kOutputFields}, {}, draft);
     }},
    {"thinking",
     [](const Value& value, MessageDraft& draft) {
       openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kThinkingChoiceFields}, {},
                                         draft);
     }},
    {"temperature",
     [](const Value& value, MessageDraft& draft) { draft.chat.pattern.sampling.temperature = value.number(0, 1); }},
    {"top_p",
     [](const Value& value, MessageDraft& draft) {
       draft.chat.pattern.sampling.top_p = std::max(value.number(0, 1), std::numeric_limits<float>::min());
     }},
    {"top_k",
     [](const Value& value, MessageDraft& draft) {
       draft.chat.pattern.sampling.top_k = static_cast<int>(value.integer(0, std::numeric_limits<int>::max()));
     }},
    {"stop_sequences",
     [](const Value& value, MessageDraft& draft) {
       for (const Json& each : value.list()) {
         const std::string stop = Value(value.name(), each).text();
         if (stop.empty()) value.refuse("none of them may be empty");
         draft.chat.pattern.stop.push_back(stop);
       }
       if (draft.chat.pattern.stop.size() > 16) value.refuse("at most 16 strings");
     }},
    {"stream", [](const Value& value, MessageDraft& draft) { draft.chat.request.stream = value.flag(); }},
};

constexpr const char* kMeaninglessMessageFields[] = {"metadata", "service_tier", "cache_control"};

openai::Request read_request(std::string_view body, const openai::Served& served, bool counted) {
  const Json object = openai::parse_object(body);
  MessageDraft draft(served);
  Draft& chat = draft.chat;
  chat.request.style = openai::Style::chat;
  chat.request.api = openai::Api::messages;
  openai::read_fields<MessageDraft>(object, counted ? "/v1/messages/count_tokens" : "/v1/messages", "",
                                    {kMessageFields}, kMeaninglessMessageFields, draft);
  openai::settle(chat);
  if (!draft.messages) openai::refuse("messages", "a list of messages is needed");
  if (!counted && !chat.max_completion_tokens) openai::refuse("max_tokens", "is needed: an integer above 0");
  if (draft.messages->empty() || (*draft.messages).back()["role"] == "assistant") {
    openai::refuse("messages", "must end with what the user says: an answer that is begun is not gone on with here");
  }
  if (draft.system && !draft.system->empty()) {
    draft.messages->insert(draft.messages->begin(), Json{{"role", "system"}, {"content", *draft.system}});
  }
  chat.messages = &*draft.messages;
  if (draft.tools) chat.tools = &*draft.tools;
  openai::finish_chat(chat);
  return std::move(chat.request);
}

}  // namespace

openai::Request message_request(std::string_view body, const openai::Served& served) {
  return read_request(body, served, false);
}

openai::Request count_request(std::string_view body, const openai::Served& served) {
  return read_request(body, served, true);
}

}  // namespace hayloft::runtime::serve::messages
