#include "runtime/serve/messages/message_request.h"

#include <algorithm>
#include <limits>

#include "runtime/serve/messages/blocks.h"
#include "runtime/serve/messages/context_edits.h"
#include "runtime/serve/messages/message_writer.h"
#include "runtime/serve/openai/draft.h"
#include "runtime/serve/openai/room.h"

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
  std::string choice = {};    // the type of tool_choice
  std::string thinking = {};  // and of thinking
  const Json* management = nullptr;
};

constexpr Field<MessageDraft> kChoiceFields[] = {
    {"type",
     [](const Value& value, MessageDraft& draft) {
       value.only({"auto", "none", "any", "tool"});
       draft.choice = value.text();
     }},
    {"name", [](const Value& value, MessageDraft& draft) { draft.chat.call_of = value.text(); }},
    {"disable_parallel_tool_use",
     [](const Value& value, MessageDraft& draft) { draft.chat.one_call_field = value.flag() ? value.name() : ""; }},
};

void read_choice(const Value& value, MessageDraft& draft) {
  Draft& chat = draft.chat;
  openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kChoiceFields}, {}, draft);
  if (draft.choice.empty()) openai::refuse(value.name() + ".type", "is needed: auto, none, any or tool");
  const bool named = draft.choice == "tool";
  if (named && chat.call_of.empty()) openai::refuse(value.name() + ".name", "is needed: which tool is to be called");
  if (!named && !chat.call_of.empty()) openai::refuse(value.name() + ".name", "comes with the type tool");
  chat.tools_wanted = draft.choice != "none";
  chat.call_wanted = named || draft.choice == "any";
}

// Reasoning is the template's to ask for: where it knows of it, or reasons always.
constexpr Field<MessageDraft> kThinkingChoiceFields[] = {
    {"type",
     [](const Value& value, MessageDraft& draft) {
       const openai::Served& served = draft.chat.served;
       draft.thinking = value.text();
       const bool wanted = draft.thinking != "disabled";
       if (wanted && draft.thinking != "enabled" && draft.thinking != "adaptive") {
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
    {"budget_tokens",
     [](const Value& value, MessageDraft& draft) {
       draft.chat.most_reasoning_field = value.name();
       draft.chat.pattern.most_reasoning = static_cast<int>(value.integer(1, std::numeric_limits<int>::max()));
     }},
    {"display",
     [](const Value& value, MessageDraft&) {
       if (value.json() != "full") value.refuse("reasoning is told in full here: leave it out");
     }},
};

void read_thinking(const Value& value, MessageDraft& draft) {
  openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kThinkingChoiceFields}, {},
                                    draft);
  const std::string budget = value.name() + ".budget_tokens";
  const bool bounded = draft.chat.pattern.most_reasoning > 0;
  if (draft.thinking.empty()) openai::refuse(value.name() + ".type", "is needed: enabled, adaptive or disabled");
  if (draft.thinking == "enabled" && !bounded) {
    openai::refuse(budget, "is needed: the tokens of reasoning at most; or ask for the type adaptive, without a bound");
  }
  if (draft.thinking != "enabled" && bounded) openai::refuse(budget, "comes with the type enabled");
}

constexpr Field<MessageDraft> kMessageFormatFields[] = {
    {"type", [](const Value& value, MessageDraft&) { value.only({"json_schema"}); }},
    {"schema", [](const Value& value, MessageDraft& draft) { openai::take_schema(value, value.json(), draft.chat); }},
};

void read_message_format(const Value& value, MessageDraft& draft) {
  openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kMessageFormatFields}, {},
                                    draft);
  for (const char* field : {"type", "schema"}) {
    if (!value.json().contains(field) || value.json()[field].is_null()) {
      openai::refuse(value.name() + "." + field, "is needed: the type json_schema and its schema");
    }
  }
}

// Efforts are those that gpt-oss' template knows, of which "high" is the most; others have none to ask for.
void read_effort(const Value& value, MessageDraft& draft) {
  value.only({"low", "medium", "high", "xhigh", "max"});
  const ChatTemplate* const chat_template = draft.chat.served.chat_template;
  if (chat_template == nullptr || !chat_template->names("reasoning_effort")) return;
  const bool most = value.json() == "xhigh" || value.json() == "max";
  draft.chat.variables["reasoning_effort"] = most ? "high" : value.text();
}

constexpr Field<MessageDraft> kOutputFields[] = {
    {"effort", read_effort},
    {"format", read_message_format},
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
    {"tool_choice", read_choice},
    {"output_config",
     [](const Value& value, MessageDraft& draft) {
       openai::read_fields<MessageDraft>(value.object(), value.name(), value.name() + ".", {kOutputFields}, {}, draft);
     }},
    {"thinking", read_thinking},
    {"context_management", [](const Value& value, MessageDraft& draft) { draft.management = &value.json(); }},
    {"thread",  // tool_runner asks for one, and goes on without it where the error says so
     [](const Value& value, MessageDraft&) {
       throw openai::BadRequest(400, "thread: no threads are kept here: leave it out and send the whole conversation",
                                value.name(), kThreadCode);
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

// Whose request it is.
void check_metadata(const Value& value) {
  for (const auto& [name, each] : value.object().items()) {
    const Value field(value.name() + "." + name, each);
    if (name != "user_id") openai::refuse_unknown("metadata", field.name());
    if (!each.is_null()) field.text();
  }
}

constexpr openai::Meaningless kMeaninglessMessageFields[] = {
    {"metadata", check_metadata},
    {"service_tier", openai::must_be::text},
    {"cache_control", openai::must_be::cache_mark},
};

openai::Request read_request(std::string_view body, const openai::Served& served, bool counted) {
  const Json object = openai::parse_object(body);
  MessageDraft draft(served);
  Draft& chat = draft.chat;
  chat.request.style = openai::Style::chat;
  chat.request.api = openai::Api::messages;
  chat.counted = counted;
  openai::read_fields<MessageDraft>(object, counted ? "/v1/messages/count_tokens" : "/v1/messages", "",
                                    {kMessageFields}, kMeaninglessMessageFields, draft);
  openai::settle(chat);
  if (!draft.messages) openai::refuse("messages", "a list of messages is needed");
  if (!counted && !chat.max_completion_tokens) openai::refuse("max_tokens", "is needed: an integer above 0");
  if (!counted && chat.pattern.most_reasoning >= *chat.max_completion_tokens) {
    openai::refuse(chat.most_reasoning_field, "must be less than max_tokens, in which the answer has to fit as well");
  }
  if (draft.messages->empty() || (*draft.messages).back()["role"] == "assistant") {
    openai::refuse("messages", "must end with what the user says: an answer that is begun is not gone on with here");
  }
  if (draft.system && !draft.system->empty()) {
    draft.messages->insert(draft.messages->begin(), Json{{"role", "system"}, {"content", *draft.system}});
  }
  if (draft.management != nullptr) clear_thinking(Value("context_management", *draft.management), *draft.messages);
  chat.messages = &*draft.messages;
  if (draft.tools) chat.tools = &*draft.tools;
  openai::finish_chat(chat);
  if (draft.management != nullptr) {
    check_context_edits(Value("context_management", *draft.management), object["messages"],
                        chat.request.generations.front().tokens.size());
  }
  return std::move(chat.request);
}

}  // namespace

openai::Request message_request(std::string_view body, const openai::Served& served) {
  return read_request(body, served, false);
}

openai::Request count_request(std::string_view body, const openai::Served& served) {
  return read_request(body, served, true);
}

std::int64_t count_tokens(const openai::Request& request, const openai::Served& served) {
  const GenerationRequest& generation = request.generations.front();
  return openai::tokens_of_context(served, generation.context) + static_cast<std::int64_t>(generation.tokens.size());
}

}  // namespace hayloft::runtime::serve::messages
