#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/serve/openai/piece.h"
#include "runtime/serve/openai/request.h"
#include "runtime/serve/openai/told_tokens.h"

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
    ToldTokens told;
    Piece sum;                                       // of what has been told, where the request does not stream
    std::unique_ptr<AnswerReader> reader = nullptr;  // null: the text is the answer
    std::size_t calls = 0;                           // of tools, so far
    std::string arguments = {};                      // of the last of them
  };
  Json frame(bool chunk) const;
  Json usage() const;
  bool tells_tokens() const { return request_.logprobs >= 0; }
  Piece first_piece(std::size_t choice) const;
  std::string add(std::size_t choice, Piece piece);
  void read(std::size_t choice, const std::vector<AnswerPart>& parts, Piece& piece);

  const Request& request_;
  const std::string id_;
  const std::int64_t created_;
  std::vector<Choice> choices_;
  std::size_t unfinished_;
  Usage usage_;
};

// The id of a call: nine letters and digits, as some templates want them.
std::string call_id(const std::string& answer, std::size_t choice, std::size_t number);

// {"error": {...}} as the API gives errors.
std::string error_body(int status, const std::string& message, const std::string& field = {},
                       const std::string& code = {});

}  // namespace hayloft::runtime::serve::openai
