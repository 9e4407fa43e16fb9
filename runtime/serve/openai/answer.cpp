#include "runtime/serve/openai/answer.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "runtime/serve/answer_parts.h"

namespace hayloft::runtime::serve::openai {
namespace {

// Beyond the API: what was read, what of it was caught, and the places attended most.
Json json_of(const AnswerAudit& audit) {
  Json quotes = Json::array();
  for (const Quote& each : audit.quotes) {
    quotes.push_back(
        {{"position", each.position}, {"tokens", each.tokens}, {"share", each.share}, {"text", each.text}});
    if (audit.map.empty()) continue;
    quotes.back()["before"] = each.before;
    quotes.back()["after"] = each.after;
  }
  Json object{{"attended_share", audit.attended_share},
              {"read_bytes", audit.read_bytes},
              {"steps", audit.steps},
              {"samples", audit.samples},
              {"recall", nullptr},
              {"mass", nullptr},
              {"least_mass", nullptr},
              {"quotes", std::move(quotes)}};
  if (!audit.map.empty()) object["map"] = {{"tokens", audit.mapped}, {"shares", audit.map}};
  if (audit.predicted.known()) object["predicted_error"] = predicted_error_json(audit.predicted);
  if (audit.samples > 0) {
    object["recall"] = audit.recall;
    object["mass"] = audit.mass;
    object["least_mass"] = audit.least_mass;
  }
  return object;
}

// Returns what an answer tells beyond the API; null: nothing.
Json extension(const AnswerAudit* audit, const std::vector<std::string>& notes) {
  Json object = audit != nullptr ? json_of(*audit) : Json();
  if (!notes.empty()) object["notes"] = notes;
  return object;
}

}  // namespace

std::string error_body(int status, const std::string& message, const std::string& field, const std::string& code) {
  const char* const type = status == 401   ? "authentication_error"
                           : status == 404 ? "not_found_error"
                           : status == 429 ? "rate_limit_error"
                           : status < 500  ? "invalid_request_error"
                                           : "server_error";
  Json error{{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (!field.empty()) error["param"] = field;
  if (!code.empty()) error["code"] = code;
  return dumped({{"error", error}});
}

std::string call_id(const std::string& answer, std::size_t choice, std::size_t number) {
  constexpr std::string_view digits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::size_t bits = std::hash<std::string>()(fmt::format("{}/{}/{}", answer, choice, number));
  std::string id;
  for (int i = 0; i < 9; ++i, bits /= digits.size()) id += digits[bits % digits.size()];
  return id;
}

Answer::Answer(const Request& request, const Tokenizer& tokenizer, std::string id, std::int64_t created)
    : request_(request), id_(std::move(id)), created_(created), unfinished_(request.generations.size()) {
  for (const GenerationRequest& each : request.generations) {
    choices_.push_back({ToldTokens(request.style, tokenizer, each), {}, make_answer_reader(request.form)});
    if (!request.stream) append(choices_.back().sum, first_piece(choices_.size() - 1));
  }
}

Json Answer::frame(bool chunk) const {
  const bool chat = request_.style == Style::chat;
  return {{"id", id_},
          {"object", !chat   ? "text_completion"
                     : chunk ? "chat.completion.chunk"
                             : "chat.completion"},
          {"created", created_},
          {"model", request_.model}};
}

Json Answer::usage() const {
  Json usage{{"prompt_tokens", usage_.prompt_tokens},
             {"completion_tokens", usage_.completion_tokens},
             {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens},
             {"prompt_tokens_details", {{"cached_tokens", usage_.cached_tokens}}}};
  if (request_.style == Style::chat) {
    usage["completion_tokens_details"] = {{"reasoning_tokens", usage_.reasoning_tokens}};
  }
  usage["hayloft"] = statement_members(usage_.attention);
  return usage;
}

// A stream sends it as it is, an answer in one piece adds it up.
std::string Answer::add(std::size_t index, Piece piece) {
  if (tells_tokens() && piece.logprobs.is_null()) piece.logprobs = choices_[index].told.none();
  if (!request_.stream) {
    append(choices_[index].sum, std::move(piece));
    return {};
  }
  Json object = frame(true);
  object["choices"] = Json::array({chunk_of(piece, request_.style, index)});
  if (request_.include_usage) object["usage"] = nullptr;
  return dumped(object);
}

// In an echo with log-probabilities the prompt's text comes with them.
Piece Answer::first_piece(std::size_t index) const {
  Piece piece;
  piece.role = request_.style == Style::chat;
  if (request_.echo && !request_.generations[index].echo) piece.text = request_.prompts[index];
  return piece;
}

std::string Answer::begin(std::size_t index) {
  if (!request_.stream) return {};  // it has
  Piece piece = first_piece(index);
  return piece.role || !piece.text.empty() ? add(index, std::move(piece)) : std::string();
}

std::string Answer::scored(std::size_t index, const std::vector<TokenChoice>& prompt) {
  Piece piece;
  piece.text = request_.prompts[index];
  piece.logprobs = choices_[index].told.prompt(request_.generations[index].tokens.front(), prompt, piece.text);
  return add(index, std::move(piece));
}

// Puts what the reader has found into a piece.
void Answer::read(std::size_t index, const std::vector<AnswerPart>& parts, Piece& piece) {
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::text) piece.text += part.text;
    if (part.kind == AnswerPart::Kind::reasoning) piece.reasoning += part.text;
    if (part.kind == AnswerPart::Kind::arguments) {
      add_arguments(piece.calls, choices_[index].calls - 1, part.text);
      choices_[index].arguments += part.text;
      continue;
    }
    if (part.kind != AnswerPart::Kind::call) continue;
    const std::size_t number = choices_[index].calls++;
    choices_[index].arguments = part.call.arguments;
    piece.calls.push_back({{"index", number},
                           {"id", call_id(id_, index, number)},
                           {"type", "function"},
                           {"function", {{"name", part.call.name}, {"arguments", part.call.arguments}}}});
  }
}

std::string Answer::generated(std::size_t index, const GeneratedToken& token) {
  // Completions tell of it, as who scores a text behind it counts on as many entries as tokens; the tokens of a chat's
  // message are its text.
  if (token.ends && request_.style == Style::chat) return {};
  Piece piece;
  read(index, parts_of(choices_[index].reader.get(), token), piece);
  if (piece.text.empty() && piece.reasoning.empty() && piece.calls.empty() && !tells_tokens()) return {};
  if (tells_tokens()) piece.logprobs = choices_[index].told.next(token.choice);
  return add(index, std::move(piece));
}

std::string Answer::finished(std::size_t index, FinishReason reason, const std::string& rest, const Usage& usage) {
  --unfinished_;
  if (index % request_.copies == 0) {  // the copies of a prompt share it
    usage_.prompt_tokens += usage.prompt_tokens;
    usage_.cached_tokens += usage.cached_tokens;
  }
  usage_.completion_tokens += usage.completion_tokens;
  usage_.reasoning_tokens += usage.reasoning_tokens;
  usage_.attention.add(usage.attention);
  Piece piece;
  read(index, last_parts(choices_[index].reader.get(), rest), piece);
  piece.called = choices_[index].calls > 0 && Json::accept(choices_[index].arguments);  // false: it was cut off
  piece.reason = reason;
  piece.hayloft = extension(usage.audit.get(), request_.notes[index]);
  return add(index, std::move(piece));
}

std::string Answer::usage_chunk() const {
  Json object = frame(true);
  object["choices"] = Json::array();
  object["usage"] = usage();
  return dumped(object);
}

std::string Answer::whole() const {
  Json object = frame(false);
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices.push_back(choice_of(choices_[i].sum, request_.style, i));
  }
  object["choices"] = std::move(choices);
  object["usage"] = usage();
  return dumped(object);
}

}  // namespace hayloft::runtime::serve::openai
