#include "runtime/serve/reply_writer.h"

#include <fmt/format.h>

#include <mutex>
#include <random>

#include "runtime/serve/messages/message_writer.h"
#include "runtime/serve/openai/answer.h"
#include "runtime/serve/responses/response_writer.h"

namespace hayloft::runtime::serve {
namespace {

std::string unnamed_event(const std::string& data) {
  return data.empty() ? std::string() : "data: " + data + "\n\n";
}

// Completions and chats of OpenAI's API.
class AnswerWriter : public ReplyWriter {
 public:
  AnswerWriter(const openai::Request& request, const Tokenizer& tokenizer, std::int64_t created)
      : request_(request),
        answer_(request, tokenizer, new_id(request.style == openai::Style::chat ? "chatcmpl-" : "cmpl-"), created) {}

  std::string begin() override {
    std::string text;
    for (std::size_t i = 0; i < request_.generations.size(); ++i) text += unnamed_event(answer_.begin(i));
    return text;
  }
  std::string scored(std::size_t choice, const std::vector<TokenChoice>& prompt) override {
    return unnamed_event(answer_.scored(choice, prompt));
  }
  std::string generated(std::size_t choice, const GeneratedToken& token) override {
    return unnamed_event(answer_.generated(choice, token));
  }
  std::string finished(std::size_t choice, FinishReason reason, const std::string& rest, const Usage& usage) override {
    return unnamed_event(answer_.finished(choice, reason, rest, usage));
  }
  std::string failed(int status, const std::string& message) override {
    return unnamed_event(openai::error_body(status, message));
  }
  std::string end(bool failed) override {
    const bool usage = request_.include_usage && !failed;
    return (usage ? unnamed_event(answer_.usage_chunk()) : std::string()) + unnamed_event("[DONE]");
  }
  bool complete() const override { return answer_.complete(); }
  std::string whole() override { return answer_.whole(); }

 private:
  const openai::Request& request_;
  openai::Answer answer_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_reply_writer(const openai::Request& request, const Tokenizer& tokenizer,
                                               std::int64_t created) {
  if (request.api == openai::Api::messages) return std::make_unique<messages::MessageWriter>(request);
  if (request.api == openai::Api::responses) return std::make_unique<responses::ResponseWriter>(request, created);
  return std::make_unique<AnswerWriter>(request, tokenizer, created);
}

std::string error_text(openai::Api api, int status, const std::string& message, const std::string& field,
                       const std::string& code) {
  if (api == openai::Api::messages) return messages::error_body(status, message, code);
  return openai::error_body(status, message, field, code);
}

std::string named_event(const openai::Json& data) {
  return "event: " + data["type"].get<std::string>() + "\ndata: " + openai::dumped(data) + "\n\n";
}

std::string new_id(const char* prefix) {
  static std::mutex mutex;
  static std::mt19937_64 random{std::random_device{}()};
  const std::lock_guard lock(mutex);
  return fmt::format("{}{:016x}{:016x}", prefix, random(), random());
}

}  // namespace hayloft::runtime::serve
