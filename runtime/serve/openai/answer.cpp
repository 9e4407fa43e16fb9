#include "runtime/serve/openai/answer.h"

#include <algorithm>

namespace hayloft::runtime::serve::openai {
namespace {

using nlohmann::json;

// Single tokens may be parts of characters.
std::string dumped(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

json named(std::optional<FinishReason> reason) {
  if (!reason) return nullptr;
  return *reason == FinishReason::stop ? "stop" : "length";
}

// Beyond the API: what was read, what of it was caught, and the places attended most.
json json_of(const AnswerAudit& audit) {
  json quotes = json::array();
  for (const Quote& each : audit.quotes) {
    quotes.push_back(
        {{"position", each.position}, {"tokens", each.tokens}, {"share", each.share}, {"text", each.text}});
  }
  json object{{"attended_share", audit.attended_share},
              {"read_bytes", audit.read_bytes},
              {"steps", audit.steps},
              {"samples", audit.samples},
              {"recall", nullptr},
              {"mass", nullptr},
              {"least_mass", nullptr},
              {"quotes", std::move(quotes)}};
  if (audit.samples > 0) {
    object["recall"] = audit.recall;
    object["mass"] = audit.mass;
    object["least_mass"] = audit.least_mass;
  }
  return object;
}

}  // namespace

std::string error_body(int status, const std::string& message, const std::string& field) {
  const char* const type = status == 401   ? "authentication_error"
                           : status == 404 ? "not_found_error"
                           : status == 429 ? "rate_limit_error"
                           : status < 500  ? "invalid_request_error"
                                           : "server_error";
  json error{{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (!field.empty()) error["param"] = field;
  return dumped({{"error", error}});
}

Answer::Answer(const Request& request, const Tokenizer& tokenizer, std::string id, std::int64_t created)
    : request_(request),
      tokenizer_(tokenizer),
      id_(std::move(id)),
      created_(created),
      choices_(request.generations.size()),
      unfinished_(request.generations.size()) {}

std::string Answer::token_text(std::int32_t token) const {
  return tokenizer_.decode({token}, true, true);
}

json Answer::frame(bool chunk) const {
  const bool chat = request_.style == Style::chat;
  return {{"id", id_},
          {"object", !chat   ? "text_completion"
                     : chunk ? "chat.completion.chunk"
                             : "chat.completion"},
          {"created", created_},
          {"model", request_.model}};
}

json Answer::usage() const {
  return {{"prompt_tokens", usage_.prompt_tokens},
          {"completion_tokens", usage_.completion_tokens},
          {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage_.cached_tokens}}}};
}

json Answer::chat_logprobs(const Choice& choice) const {
  const auto told = [&](const TokenLogprob& token) {
    const std::string text = token_text(token.token);
    json bytes = json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
    return json{{"token", text}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
  };
  json content = json::array();
  for (std::size_t i = choice.sent; i < choice.tokens.size(); ++i) {
    json token = told(choice.tokens[i].chosen);
    token["top_logprobs"] = json::array();
    for (const TokenLogprob& each : choice.tokens[i].top) token["top_logprobs"].push_back(told(each));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

json Answer::completion_logprobs(Choice& choice, std::size_t index) const {
  json tokens = json::array(), logprobs = json::array(), top = json::array(), offsets = json::array();
  const auto add = [&](std::int32_t token, json logprob, json likely) {
    const std::string text = token_text(token);
    tokens.push_back(text);
    logprobs.push_back(std::move(logprob));
    top.push_back(std::move(likely));
    offsets.push_back(choice.offset);
    choice.offset += text.size();
  };
  const std::size_t bare = choice.first_is_bare ? 1 : 0;
  if (choice.first_is_bare && choice.sent == 0) add(request_.generations[index].tokens.front(), nullptr, nullptr);
  for (std::size_t i = std::max(choice.sent, bare) - bare; i < choice.tokens.size(); ++i) {
    json likely = json::object();
    for (const TokenLogprob& each : choice.tokens[i].top) likely[token_text(each.token)] = each.logprob;
    add(choice.tokens[i].chosen.token, choice.tokens[i].chosen.logprob, std::move(likely));
  }
  return {{"tokens", tokens}, {"token_logprobs", logprobs}, {"top_logprobs", top}, {"text_offset", offsets}};
}

json Answer::logprobs(Choice& choice, std::size_t index) const {
  if (request_.logprobs < 0) return nullptr;
  json told = request_.style == Style::chat ? chat_logprobs(choice) : completion_logprobs(choice, index);
  choice.sent = choice.tokens.size() + (choice.first_is_bare ? 1 : 0);
  return told;
}

std::string Answer::chunk(std::size_t index, const std::string& text, std::optional<FinishReason> reason, bool role) {
  if (!request_.stream) return {};
  json object = frame(true);
  json choice{{"index", index}, {"finish_reason", named(reason)}, {"logprobs", logprobs(choices_[index], index)}};
  if (request_.style == Style::chat) {
    json delta = json::object();
    if (role) delta["role"] = "assistant";
    if (role || !text.empty()) delta["content"] = text;
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  if (reason && choices_[index].audit) choice["hayloft"] = json_of(*choices_[index].audit);
  object["choices"] = json::array({std::move(choice)});
  if (request_.include_usage) object["usage"] = nullptr;
  return dumped(object);
}

std::string Answer::begin(std::size_t index) {
  Choice& choice = choices_[index];
  if (request_.echo) choice.text = request_.prompts[index];
  if (request_.style == Style::chat) return chunk(index, "", std::nullopt, true);
  return request_.echo && !request_.generations[index].echo ? chunk(index, choice.text, std::nullopt, false)
                                                            : std::string();
}

std::string Answer::scored(std::size_t index, const std::vector<TokenChoice>& prompt) {
  Choice& choice = choices_[index];
  choice.first_is_bare = true;
  choice.tokens = prompt;
  return chunk(index, choice.text, std::nullopt, false);
}

std::string Answer::generated(std::size_t index, const GeneratedToken& token) {
  Choice& choice = choices_[index];
  if (!request_.stream) choice.text += token.text;
  if (request_.logprobs >= 0) choice.tokens.push_back(token.choice);
  return token.text.empty() && request_.logprobs < 0 ? std::string() : chunk(index, token.text, std::nullopt, false);
}

std::string Answer::finished(std::size_t index, FinishReason reason, const std::string& rest, const Usage& usage) {
  Choice& choice = choices_[index];
  choice.text += rest;
  choice.reason = reason;
  choice.audit = usage.audit;
  --unfinished_;
  usage_.prompt_tokens += usage.prompt_tokens;
  usage_.cached_tokens += usage.cached_tokens;
  usage_.completion_tokens += usage.completion_tokens;
  return chunk(index, rest, reason, false);
}

std::string Answer::usage_chunk() const {
  json object = frame(true);
  object["choices"] = json::array();
  object["usage"] = usage();
  return dumped(object);
}

std::string Answer::whole() const {
  json object = frame(false);
  json list = json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice told = choices_[i];
    json choice{{"index", i}, {"finish_reason", named(told.reason)}, {"logprobs", logprobs(told, i)}};
    if (request_.style == Style::chat) {
      choice["message"] = {{"role", "assistant"}, {"content", told.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = told.text;
    }
    if (told.audit) choice["hayloft"] = json_of(*told.audit);
    list.push_back(std::move(choice));
  }
  object["choices"] = std::move(list);
  object["usage"] = usage();
  return dumped(object);
}

}  // namespace hayloft::runtime::serve::openai
