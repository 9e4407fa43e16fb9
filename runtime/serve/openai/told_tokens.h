#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/serve/openai/fields.h"
#include "runtime/serve/openai/request.h"
#include "runtime/tokenizer/text_stream.h"

namespace hayloft::runtime::serve::openai {

// Writes the log-probabilities of a choice's tokens as the API's `logprobs`, part by part: what the parts hold, joined,
// is the whole. One per choice, whose tokens come in order; not thread-safe. Views the tokenizer.
class ToldTokens {
 public:
  ToldTokens(Style style, const Tokenizer& tokenizer, const GenerationRequest& request)
      : style_(style), tokenizer_(tokenizer), stream_(tokenizer, request.tokens.back()) {}

  // Returns what is told of no tokens.
  Json none() const;
  // Returns what is told of an echo: the prompt's tokens, of which the first has no log-probability, and its text.
  Json prompt(std::int32_t first, const std::vector<TokenChoice>& others, const std::string& text);
  Json next(const TokenChoice& choice);

 private:
  // A token as a completion names it: its text; the bytes of what is no whole text, as OpenAI's API writes them.
  std::string label(std::int32_t token) const;
  // The likely tokens by their labels, most likely first: one that another has already is given by its id. `chosen` is
  // then the label of the token chosen.
  Json likely(const TokenChoice& choice, std::string& chosen) const;
  void add(Json& told, const TokenChoice& choice, std::int64_t offset) const;
  Json chat_token(const TokenLogprob& token) const;

  const Style style_;
  const Tokenizer& tokenizer_;
  TextStream stream_;
  std::int64_t characters_ = 0;  // of the text before the next token
};

}  // namespace hayloft::runtime::serve::openai
