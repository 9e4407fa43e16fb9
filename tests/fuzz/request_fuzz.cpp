#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "runtime/serve/messages/message_request.h"
#include "runtime/serve/openai/answer.h"
#include "runtime/serve/openai/fields.h"
#include "runtime/serve/openai/request.h"
#include "runtime/serve/reply_writer.h"
#include "runtime/serve/responses/response_request.h"

namespace {

using namespace hayloft::runtime;

Tokenizer small_tokenizer() {
  std::ifstream file(HAYLOFT_FUZZ_FOLDER "/corpus/tokenizer_fuzz/byte_level.json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  return Tokenizer::from_json(json, "tokenizer.json");
}

}  // namespace

// Whatever the body of a request holds, it is a request that can be answered, or BadRequest says why not. The first
// byte chooses between completions and chat, from 240 on between messages and responses.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = small_tokenizer();
  static const ModelConfig config = [] {
    ModelConfig made;
    made.vocab_size = tokenizer.vocab_size();
    return made;
  }();
  static const ChatTemplate chat = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif "
      "%}\n"
      "{% endfor %}{{ tools }}{{ enable_thinking }}",
      "fuzz");
  static const serve::Contexts contexts("/nonexistent");
  static const serve::openai::Served served{"fuzz", config, tokenizer, &chat, contexts, {}, 8, 100};
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const serve::openai::Request request = data[0] >= 240
                                               ? (data[0] % 2 == 0 ? serve::messages::message_request(body, served)
                                                                   : serve::responses::response_request(body, served))
                                           : data[0] % 2 == 0 ? serve::openai::completion_request(body, served)
                                                              : serve::openai::chat_request(body, served);
    const std::unique_ptr<serve::ReplyWriter> writer = serve::make_reply_writer(request, tokenizer, 0);
    writer->begin();
    writer->generated(0, {{{5, -1.0F}, {}}, "hay", {{"hay", false}}});
    if (request.generations.size() == 1) {
      writer->finished(0, serve::FinishReason::stop, "", {});
      writer->whole();
    }
    if (request.api != serve::openai::Api::openai) return 0;
    serve::openai::Answer answer(request, tokenizer, "id", 0);
    for (std::size_t i = 0; i < request.generations.size(); ++i) {
      answer.begin(i);
      answer.generated(i, {{{request.generations[i].tokens.front(), -1.0F}, {}}, "hay"});
      answer.finished(i, serve::FinishReason::stop, "", {});
    }
    answer.whole();
  } catch (const serve::openai::BadRequest& refused) {
    if (std::string_view(refused.what()).empty()) __builtin_trap();
    serve::openai::error_body(refused.status(), refused.what(), refused.field());
  }
  return 0;
}
