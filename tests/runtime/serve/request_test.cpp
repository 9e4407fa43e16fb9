#include "runtime/serve/openai/request.h"

#include <gtest/gtest.h>

#include "runtime/decode/load_tokenizer.h"
#include "runtime/serve/openai/fields.h"
#include "tests/support/temporary_folder.h"

// Requests as clients send them, and as they should not.
namespace hayloft::runtime::serve::openai {
namespace {

const std::filesystem::path model_folder = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

class OpenAiRequestTest : public testing::Test {
 protected:
  OpenAiRequestTest()
      : tokenizer_(load_tokenizer(model_folder)),
        template_(
            ChatTemplate::from_source("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "test")),
        contexts_(folder_.path()),
        served_{"needle", config_, tokenizer_, &template_, contexts_, {.temperature = 1}, 8, 100} {
    config_.vocab_size = tokenizer_.vocab_size();
  }

  int status_of(Request (*read)(std::string_view, const Served&), const std::string& body) const {
    try {
      read(body, served_);
      return 200;
    } catch (const BadRequest& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.status();
    }
  }

  test::TemporaryFolder folder_;
  ModelConfig config_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  Contexts contexts_;
  Served served_;
};

TEST_F(OpenAiRequestTest, ACompletionSaysWhatItWants) {
  const Request request = completion_request(
      R"({"model": "needle", "prompt": "the hay", "max_tokens": 3, "temperature": 0, "stop": ["x", "y"], "seed": 7,
          "stream": true, "stream_options": {"include_usage": true}})",
      served_);
  ASSERT_EQ(request.generations.size(), 1u);
  const GenerationRequest& generation = request.generations[0];
  EXPECT_EQ(generation.tokens, tokenizer_.encode_prompt("the hay"));
  EXPECT_EQ(generation.max_tokens, 3);
  EXPECT_EQ(generation.sampling.temperature, 0);
  EXPECT_EQ(generation.sampling.seed, 7u);
  EXPECT_EQ(generation.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_FALSE(generation.echo);
}

TEST_F(OpenAiRequestTest, PromptsMayBeTokensAndMany) {
  const Request request = completion_request(
      R"({"prompt": [[5, 6, 7], [8]], "n": 2, "echo": true, "logprobs": 1, "max_tokens": 1})", served_);
  ASSERT_EQ(request.generations.size(), 4u);
  EXPECT_EQ(request.generations[0].tokens, (std::vector<std::int32_t>{5, 6, 7}));
  EXPECT_EQ(request.generations[1].tokens, (std::vector<std::int32_t>{5, 6, 7}));
  EXPECT_EQ(request.generations[2].tokens, (std::vector<std::int32_t>{8}));
  EXPECT_NE(request.generations[0].sampling.seed, request.generations[1].sampling.seed);
  EXPECT_TRUE(request.generations[0].echo);
  EXPECT_EQ(request.generations[0].logprobs, 1);
}

TEST_F(OpenAiRequestTest, AChatIsWrittenByTheTemplate) {
  const Request request = chat_request(
      R"({"messages": [{"role": "system", "content": "be brief"},
                       {"role": "user", "content": [{"type": "text", "text": "hay"}, {"type": "text", "text": "?"}]}],
          "max_completion_tokens": 9, "max_tokens": 4, "logprobs": true, "top_logprobs": 2})",
      served_);
  ASSERT_EQ(request.generations.size(), 1u);
  EXPECT_EQ(request.generations[0].tokens, tokenizer_.encode_prompt("system: be brief\nuser: hay?\n"));
  EXPECT_EQ(request.generations[0].max_tokens, 9);
  EXPECT_EQ(request.generations[0].logprobs, 2);
  EXPECT_EQ(request.generations[0].sampling.temperature, 1);
}

TEST_F(OpenAiRequestTest, WhatIsWrongIsRefusedWithAReason) {
  const std::vector<std::pair<std::string, int>> bodies{
      {"", 400},
      {"[]", 400},
      {"{", 400},
      {"\"text\"", 400},
      {R"({"prompt": null})", 400},
      {R"({"prompt": ""})", 400},
      {R"({"prompt": []})", 400},
      {R"({"prompt": [[]]})", 400},
      {R"({"prompt": {"a": 1}})", 400},
      {R"({"prompt": [1, "a"]})", 400},
      {R"({"prompt": [-1]})", 400},
      {R"({"prompt": [99999999999999999999]})", 400},
      {R"({"prompt": [1e3]})", 400},
      {R"({"prompt": "a", "max_tokens": 0})", 400},
      {R"({"prompt": "a", "max_tokens": -1})", 400},
      {R"({"prompt": "a", "max_tokens": 1.5})", 400},
      {R"({"prompt": "a", "max_tokens": "3"})", 400},
      {R"({"prompt": "a", "max_tokens": 18446744073709551615})", 400},
      {R"({"prompt": "a", "temperature": -1})", 400},
      {R"({"prompt": "a", "temperature": 1e999})", 400},
      {R"({"prompt": "a", "temperature": "hot"})", 400},
      {R"({"prompt": "a", "top_p": 1.1})", 400},
      {R"({"prompt": "a", "n": 0})", 400},
      {R"({"prompt": "a", "n": 9})", 400},
      {R"({"prompt": ["a", "b", "c", "d", "e"], "n": 2})", 400},
      {R"({"prompt": "a", "stop": 3})", 400},
      {R"({"prompt": "a", "stop": [3]})", 400},
      {R"({"prompt": "a", "stream": 1})", 400},
      {R"({"prompt": "a", "stream_options": []})", 400},
      {R"({"prompt": "a", "logprobs": 21})", 400},
      {R"({"prompt": "a", "logprobs": true})", 400},
      {R"({"prompt": "a", "seed": 1.5})", 400},
      {R"({"prompt": "a", "suffix": "b"})", 400},
      {R"({"prompt": "a", "best_of": 3})", 400},
      {R"({"prompt": "a", "frequency_penalty": 0.5})", 400},
      {R"({"prompt": "a", "logit_bias": {"5": 3}})", 400},
      {R"({"prompt": "a", "model": "other"})", 404},
      {R"({"prompt": "a", "model": "needle:none"})", 404},
      {R"({"prompt": "a", "model": "needle:../../etc/passwd"})", 400},
      {R"({"prompt": "a", "model": "needle:"})", 400},
      {R"({"prompt": "a", "model": 5})", 400},
      {std::string(100000, '['), 400},
      {R"({"prompt": "a", "user": )" + nested(100000) + "}", 400},
      {R"({"prompt": "a", "stop": )" + nested(100000) + "}", 400},
  };
  for (const auto& [body, status] : bodies)
    EXPECT_EQ(status_of(completion_request, body), status) << body.substr(0, 80);
}

TEST_F(OpenAiRequestTest, AChatThatIsWrongIsRefusedWithAReason) {
  const std::vector<std::string> bodies{
      R"({})",
      R"({"messages": []})",
      R"({"messages": "hello"})",
      R"({"messages": [5]})",
      R"({"messages": [{"content": "no role"}]})",
      R"({"messages": [{"role": 5, "content": "a"}]})",
      R"({"messages": [{"role": "user", "content": 5}]})",
      R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
      R"({"messages": [{"role": "user", "content": "a"}], "tools": 5})",
      R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}})",
      R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 50, "logprobs": true})",
      R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": []})",
  };
  for (const std::string& body : bodies) EXPECT_EQ(status_of(chat_request, body), 400) << body;
  for (const char* field : {"x", "tool_calls", "content"}) {
    const std::string body =
        R"({"messages": [{"role": "user", ")" + std::string(field) + "\": " + nested(100000) + "}]}";
    EXPECT_EQ(status_of(chat_request, body), 400) << field;
  }
}

TEST_F(OpenAiRequestTest, AModelWithoutATemplateDoesNotChat) {
  served_.chat_template = nullptr;
  EXPECT_EQ(status_of(chat_request, R"({"messages": [{"role": "user", "content": "a"}]})"), 400);
}

TEST_F(OpenAiRequestTest, FieldsThatAreNullOrAtTheirDefaultAreAsIfAbsent) {
  EXPECT_EQ(status_of(completion_request,
                      R"({"prompt": "a", "suffix": null, "best_of": 1, "frequency_penalty": 0, "presence_penalty": 0.0,
                          "logit_bias": {}, "stop": null, "seed": null, "user": "me", "stream_options": null})"),
            200);
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai
