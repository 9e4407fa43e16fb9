#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/serve/reply_writer.h"

namespace hayloft::runtime::serve::responses {

// Writes an answer as a response of OpenAI's API: items of reasoning, messages and calls of functions, in the order
// that the model has written them in. A response that is complete is stored, where the request lets it be.
class ResponseWriter : public ReplyWriter {
 public:
  ResponseWriter(const openai::Request& request, std::int64_t created);

  std::string begin() override;
  std::string scored(std::size_t, const std::vector<TokenChoice>&) override { return {}; }
  std::string generated(std::size_t, const GeneratedToken& token) override;
  std::string finished(std::size_t, FinishReason reason, const std::string& rest, const Usage& usage) override;
  std::string waiting() override { return event({{"type", "response.in_progress"}, {"response", response()}}); }
  std::string failed(int status, const std::string& message) override;
  std::string end(bool) override { return {}; }
  bool complete() const override { return complete_; }
  std::string whole() override { return openai::dumped(response()); }

 private:
  openai::Json response() const;
  std::string event(openai::Json data);  // with its number
  std::string add(const std::vector<AnswerPart>& parts);
  std::string add_text(const AnswerPart& part);
  std::string add_call(const ToolCall& call);
  std::string add_arguments(const std::string& text);
  std::string close_call(const openai::Json& item);
  std::string open_item(bool message);
  std::string close_item(const char* status);

  const openai::Request& request_;
  const std::string id_;
  const std::int64_t created_;
  const std::unique_ptr<AnswerReader> reader_;
  openai::Json output_ = openai::Json::array();
  bool open_ = false;  // the last item may go on
  std::string status_ = "in_progress";
  openai::Json error_, usage_;
  std::int64_t number_ = 0;  // of the next event
  bool complete_ = false;
};

}  // namespace hayloft::runtime::serve::responses
