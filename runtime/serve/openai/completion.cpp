#include <fmt/format.h>

#include "runtime/serve/openai/draft.h"

// Requests of /v1/completions.
namespace hayloft::runtime::serve::openai {
namespace {

constexpr int kMostLogprobs = 20;
constexpr const char* kPrompt = "prompt";
constexpr const char* kPromptForms = "a text, a list of texts, token ids or a list of lists of token ids is needed";

constexpr Field<Draft> kCompletionFields[] = {
    {kPrompt, [](const Value& value, Draft& draft) { draft.prompt = &value.json(); }},
    {"echo", [](const Value& value, Draft& draft) { draft.request.echo = value.flag(); }},
    {"logprobs", [](const Value& value,
                    Draft& draft) { draft.request.logprobs = static_cast<int>(value.integer(0, kMostLogprobs)); }},
    {"best_of", [](const Value& value, Draft& draft) { draft.best_of = value.integer(1, draft.served.most_choices); }},
    {"suffix", [](const Value& value, Draft&) { value.only({""}); }},
};

std::vector<std::int32_t> token_ids(const Json& list, const Draft& draft) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  const int vocab = draft.served.config.vocab_size;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab)) {
      refuse(kPrompt, fmt::format("a list of token ids from 0 to {} is wanted", vocab - 1));
    }
    tokens.push_back(id.get<std::int32_t>());
  }
  return tokens;
}

void add_prompt(const Json& prompt, Draft& draft) {
  if (prompt.is_string()) {
    const std::string& text = prompt.get_ref<const std::string&>();
    add_generations(draft, prompt_tokens(text, draft), text, kPrompt);
  } else if (prompt.is_array()) {
    const std::vector<std::int32_t> tokens = token_ids(prompt, draft);
    add_generations(draft, tokens, draft.served.tokenizer.decode(tokens), kPrompt);
  } else {
    refuse(kPrompt, kPromptForms);
  }
}

void add_prompts(Draft& draft) {
  if (draft.prompt == nullptr) refuse(kPrompt, kPromptForms);
  const Json& prompt = *draft.prompt;
  if (!prompt.is_array() || (!prompt.empty() && prompt.front().is_number())) return add_prompt(prompt, draft);
  if (prompt.empty()) refuse(kPrompt, "is empty: there is nothing to go on from");
  if (prompt.size() > static_cast<std::size_t>(draft.served.most_choices)) {
    refuse(kPrompt, fmt::format("{} prompts: at most {} in one request", prompt.size(), draft.served.most_choices));
  }
  for (const Json& each : prompt) add_prompt(each, draft);
}

}  // namespace

Request completion_request(std::string_view body, const Served& served) {
  const Json object = parse_object(body);
  Draft draft(served);
  read_fields<Draft>(object, "/v1/completions", "", {kCompletionFields, common_fields()}, meaningless_fields(), draft);
  settle(draft);
  if (draft.best_of && *draft.best_of != draft.n) refuse("best_of", "this server does not support it; it may be n");
  if (draft.max_tokens == 0 && !draft.request.echo) refuse("max_tokens", "must be an integer above 0 without echo");
  draft.pattern.logprobs = draft.request.logprobs;
  draft.pattern.echo = draft.request.echo && draft.request.logprobs >= 0;
  add_constraint(draft);
  add_prompts(draft);
  return std::move(draft.request);
}

}  // namespace hayloft::runtime::serve::openai
