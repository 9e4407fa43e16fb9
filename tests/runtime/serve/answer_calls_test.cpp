#include <random>

#include "runtime/serve/openai/answer.h"
#include "tests/runtime/serve/request_fixture.h"

// Calls of tools in answers to chats, streamed and in one piece.
namespace hayloft::runtime::serve::openai {
namespace {

class AnswerCalls : public OpenAiRequestTest {
 protected:
  AnswerCalls() {
    template_ = ChatTemplate::from_source("{{ tools | tojson }}<tool_call>{{ messages[0].content }}", "test");
  }

  // The answer of this text, which comes in runs of at most so many bytes: its content, and its calls one by one.
  std::pair<std::string, std::vector<std::pair<std::string, std::string>>> told(const std::string& text, bool stream,
                                                                                std::mt19937& random) {
    const std::string with = stream ? R"(, "stream": true})" : "}";
    const Request request = chat_request(R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type":
        "function", "function": {"name": "f", "parameters": {"type": "object"}}}])" +
                                             with,
                                         served_);
    Answer answer(request, tokenizer_, "id", 0);
    std::vector<std::string> chunks;
    for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
      size = 1 + random() % 9;
      chunks.push_back(answer.generated(0, {{}, "", {{text.substr(at, size), false}}}));
    }
    chunks.push_back(answer.finished(0, FinishReason::stop, "", {}));
    if (!stream) chunks = {answer.whole()};
    std::string content;
    std::vector<std::pair<std::string, std::string>> calls;
    for (const std::string& chunk : chunks) {
      if (chunk.empty()) continue;
      const Json part = Json::parse(chunk)["choices"][0][stream ? "delta" : "message"];
      if (part.contains("content") && part["content"].is_string()) content += part["content"].get<std::string>();
      for (const Json& each : part.value("tool_calls", Json::array())) {
        const Json& function = each["function"];
        if (function.contains("name")) calls.emplace_back(function["name"], "");
        calls.back().second += function["arguments"].get<std::string>();
      }
    }
    return {content, calls};
  }
};

TEST_F(AnswerCalls, BrokenAndWholeOnesAreTheSameInAStreamAndInOnePiece) {
  const std::vector<std::string> pieces{"<tool_call>",
                                        "</tool_call>",
                                        "<function=f>",
                                        "</function>",
                                        "<parameter=a>",
                                        "</parameter>",
                                        "\n",
                                        "hay",
                                        R"({"name": "f", "arguments": {"a": ")",
                                        "\"}}",
                                        "\"",
                                        "}",
                                        "{",
                                        ",",
                                        "\\",
                                        "12345678901234567890123",
                                        R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)"};
  std::mt19937 random(3);
  int called = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = "<tool_call>";
    for (std::size_t n = random() % 9; n-- > 0;) text += pieces[random() % pieces.size()];
    const auto streamed = told(text, true, random), whole = told(text, false, random);
    ASSERT_EQ(streamed, whole) << text;
    for (const auto& [name, arguments] : whole.second) {
      ASSERT_TRUE(Json::accept(arguments)) << text;
      ++called;
    }
  }
  EXPECT_GT(called, 50);
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai
