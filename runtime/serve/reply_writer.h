#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/serve/generation.h"
#include "runtime/serve/openai/fields.h"
#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve {

// Writes what the engine tells of one request in the form of the API that it was asked by: events of a stream, or all
// of it at the end. One per request; not thread-safe. `choice` numbers its generations.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  // Each gives events, as a stream has them; empty: none (always, where the request does not stream).
  virtual std::string begin() = 0;
  virtual std::string scored(std::size_t choice, const std::vector<TokenChoice>& prompt) = 0;
  virtual std::string generated(std::size_t choice, const GeneratedToken& token) = 0;
  virtual std::string finished(std::size_t choice, FinishReason reason, const std::string& rest,
                               const Usage& usage) = 0;
  // Says no more than that the answer goes on, for clients that leave a stream which has had no event for minutes,
  // whatever comments it had; empty where the API has no such event.
  virtual std::string waiting() { return {}; }
  virtual std::string failed(int status, const std::string& message) = 0;  // in the middle of a stream
  virtual std::string end(bool failed) = 0;                                // the last of a stream

  virtual bool complete() const = 0;
  virtual std::string whole() = 0;  // of a request that does not stream, when it is complete
};

// The writer that the request's API has. The request and the tokenizer outlive it.
std::unique_ptr<ReplyWriter> make_reply_writer(const openai::Request& request, const Tokenizer& tokenizer,
                                               std::int64_t created);

// The body of an error as the API has it.
std::string error_text(openai::Api api, int status, const std::string& message, const std::string& field = {},
                       const std::string& code = {});

// "event: NAME\ndata: {...}\n\n"
std::string named_event(const openai::Json& data);

// An id that nothing else has, of no other meaning: PREFIX and 32 digits.
std::string new_id(const char* prefix);

}  // namespace hayloft::runtime::serve
