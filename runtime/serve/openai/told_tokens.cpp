#include "runtime/serve/openai/told_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "offload/text/utf8.h"

namespace hayloft::runtime::serve::openai {
namespace {

std::int64_t character_count(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

Json ToldTokens::none() const {
  if (style_ == Style::chat) return {{"content", Json::array()}};
  return {{"tokens", Json::array()},
          {"token_logprobs", Json::array()},
          {"top_logprobs", Json::array()},
          {"text_offset", Json::array()}};
}

Json ToldTokens::prompt(std::int32_t first, const std::vector<TokenChoice>& others, const std::string& text) {
  Json told = none();
  told["tokens"].push_back(label(first));
  told["token_logprobs"].push_back(nullptr);
  told["top_logprobs"].push_back(nullptr);
  told["text_offset"].push_back(0);
  // A special token has no place in the text, unless the text itself spells it.
  std::size_t at = 0;
  TextStream stream(tokenizer_, first);
  const auto pass = [&](std::int32_t token, const std::string& shown) {
    std::string piece = shown;
    if (tokenizer_.is_special(token)) {
      const std::string spelled = tokenizer_.decode({token}, true);
      if (std::string_view(text).substr(at).starts_with(spelled)) piece = spelled;
    }
    at = std::min(at + piece.size(), text.size());
    characters_ += character_count(piece);
  };
  pass(first, tokenizer_.decode({first}));
  for (const TokenChoice& each : others) {
    add(told, each, characters_);
    pass(each.chosen.token, stream.push(each.chosen.token));
  }
  characters_ = character_count(text);
  return told;
}

Json ToldTokens::next(const TokenChoice& choice) {
  Json told = none();
  add(told, choice, characters_);
  characters_ += character_count(stream_.push(choice.chosen.token));
  return told;
}

std::string ToldTokens::label(std::int32_t token) const {
  const std::string bytes = tokenizer_.decode({token}, true, true);
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string written = "bytes:";
  for (const char byte : bytes) written += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return written;
}

Json ToldTokens::likely(const TokenChoice& choice, std::string& chosen) const {
  Json likely = Json::object();
  chosen = label(choice.chosen.token);
  bool found = false;
  for (const TokenLogprob& each : choice.top) {
    std::string name = label(each.token);
    if (likely.contains(name)) name = fmt::format("token_id:{}", each.token);
    likely[name] = each.logprob;
    if (each.token != choice.chosen.token) continue;
    chosen = name;
    found = true;
  }
  if (!found && likely.contains(chosen)) chosen = fmt::format("token_id:{}", choice.chosen.token);
  return likely;
}

void ToldTokens::add(Json& told, const TokenChoice& choice, std::int64_t offset) const {
  if (style_ == Style::chat) {
    Json token = chat_token(choice.chosen);
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& each : choice.top) token["top_logprobs"].push_back(chat_token(each));
    told["content"].push_back(std::move(token));
    return;
  }
  std::string chosen;
  told["top_logprobs"].push_back(likely(choice, chosen));
  told["tokens"].push_back(chosen);
  told["token_logprobs"].push_back(choice.chosen.logprob);
  told["text_offset"].push_back(offset);
}

Json ToldTokens::chat_token(const TokenLogprob& token) const {
  const std::string text = tokenizer_.decode({token.token}, true, true);
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace hayloft::runtime::serve::openai
