#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/chat_template.h"
#include "runtime/checkpoint/config.h"
#include "runtime/serve/contexts.h"
#include "runtime/serve/generation.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime::serve::responses {
class ResponseStore;
}

// The requests of OpenAI's API for completions and chat completions, as
// https://platform.openai.com/docs/api-reference describes them.
namespace hayloft::runtime::serve::openai {

// The model and the limits that requests are read against. Views; they outlive it.
struct Served {
  std::string name;  // the model's, as /v1/models gives it
  const ModelConfig& config;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template;  // null: the model has none
  const Contexts& contexts;
  SamplerOptions sampling;          // for what a request does not say
  int most_choices = 128;           // answers that one request may ask for: prompts times n
  std::int64_t longest_answer = 0;  // max_tokens of a chat request that does not say
  std::int64_t longest = 0;         // of prompt and answer in tokens, a saved context apart; 0: what the model allows
  responses::ResponseStore* responses = nullptr;  // null: none is kept
  bool drops_changing_head = true;                // of system prompts, see drop_changing_head()
};

enum class Style : std::uint8_t { completion, chat };

// The API that a request came by, which is that of its reply: OpenAI's completions and chats, Anthropic's messages,
// OpenAI's responses. All but completions are chats.
enum class Api : std::uint8_t { openai, messages, responses };

// A request of /v1/responses besides: its body, which its response tells again, and its messages but for the
// instructions, which are kept with the answer to go on from.
struct ResponseTurn {
  nlohmann::ordered_json asked = nlohmann::ordered_json::object();
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  responses::ResponseStore* store = nullptr;  // null: it is not kept
};

// One request of a client: one or several generations, and how their answers are told.
struct Request {
  Style style = Style::completion;
  Api api = Api::openai;
  std::string model;  // as asked for
  std::vector<GenerationRequest> generations;
  std::vector<std::string> prompts;             // of each, for an echo of its text
  std::vector<std::vector<std::string>> notes;  // of each, what its client has to know
  std::size_t copies = 1;                       // so many generations, one after another, have the same prompt
  bool stream = false;
  bool include_usage = false;  // in a stream
  bool echo = false;
  int logprobs = -1;
  std::shared_ptr<const ResponseTurn> turn = nullptr;
  AnswerForm form = {};  // of a chat: how calls of tools and reasoning are written
};

// Throws BadRequest.
Request completion_request(std::string_view body, const Served& served);
Request chat_request(std::string_view body, const Served& served);

}  // namespace hayloft::runtime::serve::openai
