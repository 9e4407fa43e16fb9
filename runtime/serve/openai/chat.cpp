#include <fmt/format.h>

#include "runtime/serve/openai/conversation.h"
#include "runtime/serve/openai/draft.h"

// Requests of /v1/chat/completions.
namespace hayloft::runtime::serve::openai {
namespace {

constexpr int kMostTopLogprobs = 20;
constexpr const char* kMessages = "messages";

constexpr Field<Draft> kFormatFields[] = {
    {"type", [](const Value& value, Draft&) { value.only({"text"}); }},
};

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
    {"tool_choice",
     [](const Value& value, Draft& draft) {
       value.only({"auto", "none"});
       draft.tools_wanted = value.json() == "auto";
     }},
    {"parallel_tool_calls", [](const Value& value, Draft&) { value.only({true}); }},
    {"documents", [](const Value& value, Draft& draft) { draft.variables["documents"] = value.list(); }},
    {"reasoning_effort", [](const Value& value, Draft& draft) { draft.variables["reasoning_effort"] = value.text(); }},
    {"chat_template_kwargs", read_variables},
    {"add_generation_prompt", [](const Value& value, Draft& draft) { draft.generation_prompt = value.flag(); }},
    {"continue_final_message", [](const Value& value, Draft&) { value.only({false}); }},

    // The form of the answer.
    {"response_format",
     [](const Value& value, Draft& draft) {
       read_fields<Draft>(value.object(), value.name(), value.name() + ".", {kFormatFields}, {}, draft);
     }},
    {"modalities", [](const Value& value, Draft&) { value.only({Json::array({"text"})}); }},
    {"functions", [](const Value& value, Draft&) { value.only({Json::array()}); }},
    {"function_call",
     [](const Value& value, Draft&) {
       value.only({"auto", "none"});
     }},
};

}  // namespace

Request chat_request(std::string_view body, const Served& served) {
  const Json object = parse_object(body);
  Draft draft{served};
  draft.request.style = Style::chat;
  draft.request.model = served.name;
  draft.pattern.sampling = served.sampling;
  read_fields<Draft>(object, "/v1/chat/completions", "", {kChatFields, common_fields()}, meaningless_fields(), draft);
  settle(draft);
  if (draft.max_tokens == 0) refuse("max_tokens", "must be an integer above 0");
  if (draft.top_logprobs.value_or(0) > 0 && !draft.logprobs) refuse("top_logprobs", "comes with logprobs: true");
  if (draft.logprobs) draft.request.logprobs = static_cast<int>(draft.top_logprobs.value_or(0));
  draft.pattern.logprobs = draft.request.logprobs;
  const Conversation written = write_conversation(draft);
  add_generations(draft, prompt_tokens(written.text, draft), {}, kMessages);
  for (std::vector<std::string>& notes : draft.request.notes) {
    notes.insert(notes.end(), written.notes.begin(), written.notes.end());
  }
  return std::move(draft.request);
}

}  // namespace hayloft::runtime::serve::openai
