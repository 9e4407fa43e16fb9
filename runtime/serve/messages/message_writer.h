#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/serve/reply_writer.h"

namespace hayloft::runtime::serve::messages {

// Writes an answer as a message of Anthropic's API: blocks of thinking, text and tool_use, in the order that the model
// has written them in.
class MessageWriter : public ReplyWriter {
 public:
  explicit MessageWriter(const openai::Request& request);

  std::string begin() override;
  std::string scored(std::size_t, const std::vector<TokenChoice>&) override { return {}; }
  std::string generated(std::size_t, const GeneratedToken& token) override;
  std::string finished(std::size_t, FinishReason reason, const std::string& rest, const Usage& usage) override;
  std::string waiting() override { return named_event({{"type", "ping"}}); }
  std::string failed(int status, const std::string& message) override;
  std::string end(bool failed) override;
  bool complete() const override { return complete_; }
  std::string whole() override;

 private:
  openai::Json message() const;
  std::string add(const std::vector<AnswerPart>& parts);
  std::string open_block(openai::Json block);
  std::string close_block();

  const openai::Request& request_;
  const std::string id_;
  const std::unique_ptr<AnswerReader> reader_;
  openai::Json content_ = openai::Json::array();
  bool open_ = false;      // the last block may go on
  std::string arguments_;  // of the call that it is
  openai::Json stop_reason_, stop_sequence_;
  openai::Json usage_;
  bool complete_ = false;
};

// The code of the error that tells Anthropic's clients to go on without a thread.
inline constexpr const char* kThreadCode = "thread_unsupported_request";

// {"type": "error", "error": {...}}, with details where the code has some.
std::string error_body(int status, const std::string& message, const std::string& code = {});

}  // namespace hayloft::runtime::serve::messages
