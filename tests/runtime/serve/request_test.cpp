#include "runtime/serve/openai/request.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/serve/request_fixture.h"

// Requests as clients send them, and as they should not.
namespace hayloft::runtime::serve::openai {
namespace {

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

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
      {R"({"prompt": "a", "stop": ""})", 400},
      {R"({"prompt": "a", "stop": ["b", ""]})", 400},
      {R"({"prompt": "a", "stream_options": {"include_usage": true}})", 400},
      {R"({"prompt": "a", "min_tokens": 5, "max_tokens": 4})", 400},
      {R"({"prompt": "a", "stream": 1})", 400},
      {R"({"prompt": "a", "stream_options": []})", 400},
      {R"({"prompt": "a", "logprobs": 21})", 400},
      {R"({"prompt": "a", "logprobs": true})", 400},
      {R"({"prompt": "a", "seed": 1.5})", 400},
      {R"({"prompt": "a", "suffix": "b"})", 400},
      {R"({"prompt": "a", "best_of": 3})", 400},
      {R"({"prompt": "a", "frequency_penalty": 2.5})", 400},
      {R"({"prompt": "a", "logit_bias": {"5120": 3}})", 400},
      {R"({"prompt": "a", "logit_bias": {"a": 3}})", 400},
      {R"({"prompt": "a", "logit_bias": {"5": 101}})", 400},
      {R"({"prompt": "a", "repetition_penalty": 0})", 400},
      {R"({"prompt": "a", "repeat_last_n": 5})", 400},
      {R"({"prompt": "a", "repetition_penalty": 1.1, "repeat_penalty": 1.1})", 400},
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
      R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json"}})",
      R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema"}})",
      R"({"messages": [{"role": "user", "content": "a"}], "grammar": "root ::= root"})",
      R"({"messages": [{"role": "user", "content": "a"}], "grammar": "root ::= \"a\"",
          "response_format": {"type": "json_object"}})",
      R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})",
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

// Of vLLM, llama.cpp and OpenAI's API: each would change the answer, and none is here.
TEST_F(OpenAiRequestTest, WhatIsNotHonouredIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> both{
      {"repetition_penalty", "\"a\""},
      {"min_tokens", "-1"},
      {"structured_outputs", "{}"},
      {"guided_json", "{}"},
      {"guided_regex", "\"a\""},
      {"grammar", "\"root ::= a\""},  // which is not defined
      {"json_schema", "{}"},
      {"allowed_token_ids", "[5]"},
      {"bad_words", "[\"a\"]"},
      {"truncate_prompt_tokens", "4"},
      {"skip_special_tokens", "false"},
      {"include_stop_str_in_output", "true"},
      {"use_beam_search", "true"},
      {"length_penalty", "2"},
      {"prompt_logprobs", "1"},
      {"mirostat", "2"},
      {"typical_p", "0.5"},
      {"n_predict", "5"},
      {"tfs_z", "0.5"},
      {"lora", "[]"},
      {"no_such_field", "false"},
      {"Temperature", "1"},
  };
  for (const auto& [field, value] : both) {
    const std::string more = ", \"" + field + "\": " + value + "}";
    EXPECT_EQ(refused_field(completion_request, R"({"prompt": "a")" + more), field);
    EXPECT_EQ(refused_field(chat_request, R"({"messages": [{"role": "user", "content": "a"}])" + more), field);
  }
  for (const char* field : {"response_format", "max_completion_tokens", "messages", "tools", "top_logprobs",
                            "chat_template_kwargs", "reasoning_effort"}) {
    EXPECT_EQ(refused_field(completion_request, R"({"prompt": "a", ")" + std::string(field) + "\": 1}"), field);
  }
  const std::vector<std::pair<std::string, std::string>> chat{
      {"continue_final_message", "true"},
      {"top_logprobs", "3"},
      {"chat_template", "\"a\""},
      {"documents", "[{}]"},
      {"prompt", "\"a\""},
      {"echo", "true"},
      {"suffix", "\"a\""},
      {"verbosity", "\"low\""},
      {"reasoning_effort", "\"low\""},
      {"audio", "{}"},
      {"web_search_options", "{}"},
      {"parallel_tool_calls", "\"no\""},
      {"tool_choice", "\"required\""},
      {"modalities", R"(["text", "audio"])"},
      {"functions", R"([{"name": "f"}])"},
  };
  for (const auto& [field, value] : chat) {
    const std::string body = R"({"messages": [{"role": "user", "content": "a"}], ")" + field + "\": " + value + "}";
    EXPECT_EQ(refused_field(chat_request, body), field) << value;
  }
}

TEST_F(OpenAiRequestTest, ObjectsWithinARequestAreHeldToTheirFieldsToo) {
  const std::vector<std::pair<std::string, std::string>> inner{
      {R"("stream_options": {"continuous_usage_stats": true})", "stream_options.continuous_usage_stats"},
      {R"("stream_options": {"include_obfuscation": true})", "stream_options.include_obfuscation"},
      {R"("hayloft": {"quote": 3})", "hayloft.quote"},
      {R"("hayloft": {"quotes": 3, "audit": false})", "hayloft"},
      {R"("response_format": {"type": "json"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "a"}}})",
       "response_format.json_schema.schema"},
      {R"("response_format": {"type": "text", "schema": {}})", "response_format.schema"},
      {R"("chat_template_kwargs": {"enable_thinking": false})", "enable_thinking"},
      {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs"},
      {R"("tools": [{"type": "web_search", "function": {"name": "f"}}])", "tools[0].type"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "strict": 1}}])", "tools[0].function.strict"},
  };
  for (const auto& [text, field] : inner) {
    EXPECT_EQ(refused_field(chat_request, R"({"messages": [{"role": "user", "content": "a"}], )" + text + "}"), field);
  }
  const std::vector<std::pair<std::string, std::string>> messages{
      {R"({"role": "assistant", "content": "a", "prefix": true})", "messages[0].prefix"},
      {R"({"role": "assistant", "content": "a", "audio": {"id": "a"}})", "messages[0].audio"},
      {R"({"role": "assistant", "refusal": "no"})", "messages[0].refusal"},
      {R"({"role": "user", "content": null})", "messages[0]"},
      {R"({"role": "user", "content": [{"type": "text", "text": "a", "detail": "low"}]})",
       "messages[0].content[0].detail"},
      {R"({"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]})",
       "messages[0].tool_calls[0].type"},
  };
  for (const auto& [message, field] : messages) {
    EXPECT_EQ(refused_field(chat_request, R"({"messages": [)" + message + "]}"), field);
  }
}

TEST_F(OpenAiRequestTest, WhatMeansNothingHereIsPassedOver) {
  const std::string nothing =
      R"("user": "me", "metadata": {"a": "b"}, "store": true, "safety_identifier": "x", "prompt_cache_key": "k",
         "prompt_cache_retention": "24h", "service_tier": "auto", "cache_prompt": true, "id_slot": -1,
         "prediction": {"type": "content", "content": "a"}})";
  EXPECT_EQ(status_of(completion_request, R"({"prompt": "a", )" + nothing), 200);
  EXPECT_EQ(status_of(chat_request, R"({"messages": [{"role": "user", "content": "a"}], )" + nothing), 200);
}

TEST_F(OpenAiRequestTest, AnAnswerStopsAtTokensAsWell) {
  const Request request = completion_request(R"({"prompt": "a", "stop_token_ids": [5, 7]})", served_);
  EXPECT_EQ(request.generations[0].stop_tokens, (std::vector<std::int32_t>{5, 7}));
  EXPECT_EQ(refused_field(completion_request, R"({"prompt": "a", "stop_token_ids": [5120]})"), "stop_token_ids");
}

TEST_F(OpenAiRequestTest, TokensAreDrawnByRules) {
  const LogitRules rules =
      completion_request(R"({"prompt": "a", "frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.5,
          "no_repeat_ngram_size": 3, "suppress_tokens": [7], "logit_bias": {"5": -100}, "min_tokens": 2,
          "stop_token_ids": [9]})",
                         served_)
          .generations[0]
          .sampling.rules;
  EXPECT_EQ(rules.frequency_penalty, 0.5F);
  EXPECT_EQ(rules.presence_penalty, -1);
  EXPECT_EQ(rules.repetition_penalty, 1.5F);
  EXPECT_EQ(rules.repetition_window, 0);
  EXPECT_EQ(rules.no_repeat_ngram_size, 3);
  EXPECT_EQ(rules.suppress_tokens, (std::vector<std::int32_t>{7}));
  EXPECT_EQ(rules.logit_bias, (std::vector<std::pair<std::int32_t, float>>{{5, -100}}));
  EXPECT_EQ(rules.min_new_tokens, 2);
  EXPECT_EQ(rules.end_tokens, (std::vector<std::int32_t>{9}));
  // As llama.cpp has it: of the last 64 tokens, or as many as are said; -1 of all.
  const std::vector<std::pair<std::string, std::int64_t>> windows{
      {"", 64}, {R"(, "repeat_last_n": 9)", 9}, {R"(, "repeat_last_n": -1)", 0}};
  for (const auto& [more, window] : windows) {
    const Request request = completion_request(R"({"prompt": "a", "repeat_penalty": 1.2)" + more + "}", served_);
    EXPECT_EQ(request.generations[0].sampling.rules.repetition_penalty, 1.2F);
    EXPECT_EQ(request.generations[0].sampling.rules.repetition_window, window);
  }
}

TEST_F(OpenAiRequestTest, AnswersOfOnePromptAreKnownToBe) {
  EXPECT_EQ(completion_request(R"({"prompt": ["a", "b"], "n": 3})", served_).copies, 3u);
}

TEST_F(OpenAiRequestTest, PromptAndAnswerAreHeldToWhatTheModelWasMadeFor) {
  config_.max_positions = 8;
  const auto problem = [&](const std::string& body) -> std::string {
    try {
      completion_request(body, served_);
      return {};
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_EQ(error.field(), "prompt");
      EXPECT_EQ(error.code(), "context_length_exceeded");
      return error.what();
    }
  };
  const auto ids = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) list += (i > 0 ? ", 5" : "5");
    return R"({"prompt": [)" + list + "]";
  };
  EXPECT_EQ(problem(ids(6) + R"(, "max_tokens": 2})"), "");
  EXPECT_NE(problem(ids(6) + R"(, "max_tokens": 3})").find("6 tokens and 3 to generate are 9"), std::string::npos);
  EXPECT_NE(problem(ids(9) + "}").find("9 tokens"), std::string::npos);
  EXPECT_NE(problem(ids(9) + "}").find("8"), std::string::npos);
  EXPECT_EQ(problem(ids(8) + R"(, "max_tokens": 0, "echo": true})"), "");
  // What is usual is made less.
  EXPECT_EQ(completion_request(ids(5) + "}", served_).generations[0].max_tokens, 3);
  config_.max_positions = 1000;
  EXPECT_EQ(completion_request(ids(5) + "}", served_).generations[0].max_tokens, 16);
  served_.longest = 7;  // --ctx-size
  EXPECT_EQ(completion_request(ids(5) + "}", served_).generations[0].max_tokens, 2);
  EXPECT_NE(problem(ids(8) + "}").find("--ctx-size"), std::string::npos);
}

TEST_F(OpenAiRequestTest, AChatsAnswerIsBoundedByTheRoomBehindItsPrompt) {
  const auto chat = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "a"}])" + more + "}";
  };
  const auto tokens = static_cast<int>(chat_request(chat(""), served_).generations[0].tokens.size());
  config_.max_positions = tokens + 3;
  const Request bounded = chat_request(chat(R"(, "max_tokens": 32000)"), served_);
  EXPECT_EQ(bounded.generations[0].max_tokens, 3);
  EXPECT_TRUE(bounded.generations[0].fills_room);
  ASSERT_EQ(bounded.notes[0].size(), 1u);
  EXPECT_EQ(bounded.notes[0][0], "the answer has at most the 3 tokens that there is room for, not the 32000 asked for");
  const Request fits = chat_request(chat(R"(, "max_tokens": 3)"), served_);
  EXPECT_EQ(fits.generations[0].max_tokens, 3);
  EXPECT_FALSE(fits.generations[0].fills_room);
  EXPECT_TRUE(fits.notes[0].empty());
  EXPECT_EQ(refused_field(chat_request, chat(R"(, "max_tokens": 32000, "min_tokens": 4)")), "messages");
  served_.longest = tokens + 2;  // --ctx-size
  EXPECT_EQ(chat_request(chat(R"(, "max_tokens": 32000)"), served_).generations[0].max_tokens, 2);
  served_.longest = tokens;
  EXPECT_EQ(refused_field(chat_request, chat(R"(, "max_tokens": 1)")), "messages");
}

TEST_F(OpenAiRequestTest, APromptPastWhatTheModelWasTrainedForIsNotedWhereRopeIsScaled) {
  config_.max_positions = 32;
  config_.own_positions = 8;
  config_.rope_overrides = "--rope-scaling linear --rope-scale 4";
  config_.global_rope.scaling = RopeScaling::linear;
  EXPECT_TRUE(completion_request(R"({"prompt": [5, 5]})", served_).notes[0].empty());
  const Request request = completion_request(R"({"prompt": [5, 5, 5, 5, 5, 5, 5, 5, 5]})", served_);
  ASSERT_EQ(request.notes[0].size(), 1u);
  EXPECT_NE(request.notes[0][0].find("9 tokens"), std::string::npos);
  EXPECT_NE(request.notes[0][0].find("8 that the model"), std::string::npos);
  EXPECT_EQ(status_of(completion_request, R"({"prompt": [5], "max_tokens": 32})"), 400);
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai
