#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve::openai {

// Writes what the engine tells of a request as the API's objects: all of it at the end, or chunk by chunk. One per
// request; not thread-safe. `choice` numbers its generations.
class Answer {
 public:
  // id and created: as in every object; the request outlives it.
  Answer(const Request& request, const Tokenizer& tokenizer, std::string id, std::int64_t created);

  // Each gives the data of a chunk; empty: nothing to send (always, where the request does not stream).
  std::string begin(std::size_t choice);
  std::string scored(std::size_t choice, const std::vector<TokenChoice>& prompt);
  std::string generated(std::size_t choice, const GeneratedToken& token);
  std::string finished(std::size_t choice, FinishReason reason, const std::string& rest, const Usage& usage);
  bool complete() const { return unfinished_ == 0; }

  std::string usage_chunk() const;  // the last one of a stream that includes usage
  std::string whole() const;        // of a request that does not stream, when it is complete

 private:
  struct Choice {
    std::string text;
    std::vector<TokenChoice> tokens;  // whose log-probabilities are told, the prompt's first
    std::size_t sent = 0;             // of them
    std::size_t offset = 0;           // bytes of text of those sent
    bool first_is_bare = false;       // the prompt's first token, which has no log-probability
    std::optional<FinishReason> reason;
    std::shared_ptr<const AnswerAudit> audit;
  };
  nlohmann::json frame(bool chunk) const;
  nlohmann::json usage() const;
  nlohmann::json logprobs(Choice& choice, std::size_t index) const;  // of what has not been sent
  nlohmann::json completion_logprobs(Choice& choice, std::size_t index) const;
  nlohmann::json chat_logprobs(const Choice& choice) const;
  std::string chunk(std::size_t index, const std::string& text, std::optional<FinishReason> reason, bool role);
  std::string token_text(std::int32_t token) const;

  const Request& request_;
  const Tokenizer& tokenizer_;
  const std::string id_;
  const std::int64_t created_;
  std::vector<Choice> choices_;
  std::size_t unfinished_;
  Usage usage_;
};

// {"error": {...}} as the API gives errors.
std::string error_body(int status, const std::string& message, const std::string& field = {});

}  // namespace hayloft::runtime::serve::openai
