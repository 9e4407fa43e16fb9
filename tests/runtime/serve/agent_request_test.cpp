#include "runtime/serve/messages/message_request.h"

#include <fstream>

#include "gpu/make_backend.h"
#include "runtime/context/ingest.h"
#include "runtime/serve/reply_writer.h"
#include "runtime/serve/responses/response_request.h"
#include "tests/runtime/serve/request_fixture.h"

// Requests of /v1/messages and /v1/responses: what they leave open or say twice is refused by the name that was sent.
namespace hayloft::runtime::serve::openai {
namespace {

using messages::count_request;
using messages::message_request;
using responses::response_request;

class AgentRequest : public OpenAiRequestTest {
 protected:
  AgentRequest() {
    template_ = ChatTemplate::from_source(
        "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{{ enable_thinking }}<think>\n{# </think> #}",
        "test");
  }

  static std::string message(const std::string& more) {
    return R"({"max_tokens": 60, "messages": [{"role": "user", "content": "a"}],
               "tools": [{"name": "f", "input_schema": {"type": "object"}}], )" +
           more + "}";
  }
  static std::string response(const std::string& more) { return R"({"input": "a", )" + more + "}"; }
};

using Refused = std::vector<std::pair<std::string, std::string>>;

TEST_F(AgentRequest, ObjectsOfAMessageSayAllThatTheyMean) {
  for (const auto& [text, field] : Refused{
           {R"("tool_choice": {})", "tool_choice.type"},
           {R"("tool_choice": {"type": "tool"})", "tool_choice.name"},
           {R"("tool_choice": {"type": "auto", "name": "f"})", "tool_choice.name"},
           {R"("tool_choice": {"type": "any", "name": "f"})", "tool_choice.name"},
           {R"("tool_choice": {"type": "none", "name": "f"})", "tool_choice.name"},
           {R"("output_config": {"format": {"type": "json_schema"}})", "output_config.format.schema"},
           {R"("output_config": {"format": {"schema": {"type": "object"}}})", "output_config.format.type"},
           {R"("thinking": {})", "thinking.type"},
           {R"("thinking": {"type": "enabled"})", "thinking.budget_tokens"},
           {R"("thinking": {"type": "enabled", "budget_tokens": 0})", "thinking.budget_tokens"},
           {R"("thinking": {"type": "enabled", "budget_tokens": 60})", "thinking.budget_tokens"},
           {R"("thinking": {"type": "adaptive", "budget_tokens": 5})", "thinking.budget_tokens"},
           {R"("thinking": {"type": "adaptive", "display": "summarized"})", "thinking.display"},
           {R"("thinking": {"type": "adaptive", "display": "omitted"})", "thinking.display"},
           {R"("thread": {"type": "create"})", "thread"},
       }) {
    EXPECT_EQ(refused_field(message_request, message(text)), field) << text;
  }
  for (const char* text : {R"("tool_choice": {"type": "tool", "name": "f"})", R"("tool_choice": {"type": "auto"})",
                           R"("thinking": {"type": "disabled"})", R"("thread": null)"}) {
    EXPECT_EQ(status_of(message_request, message(text)), 200) << text;
  }
}

TEST_F(AgentRequest, AThinkingBudgetBoundsTheReasoning) {
  const Request request = message_request(message(R"("thinking": {"type": "enabled", "budget_tokens": 5})"), served_);
  EXPECT_EQ(request.generations[0].most_reasoning, 5);
  ASSERT_NE(request.generations[0].reasoning, nullptr);
  EXPECT_TRUE(request.generations[0].reasoning->in_thought);
  const std::string counted = R"({"messages": [{"role": "user", "content": "a"}],
                                  "thinking": {"type": "enabled", "budget_tokens": 5000}})";
  EXPECT_EQ(status_of(count_request, counted), 200);  // which has no max_tokens
  // A template that can be told to reason, but does not show how that ends.
  template_ = ChatTemplate::from_source("{{ tools | tojson }}{{ messages[0].content }}{{ enable_thinking }}", "test");
  EXPECT_EQ(refused_field(message_request, message(R"("thinking": {"type": "enabled", "budget_tokens": 5})")),
            "thinking.budget_tokens");
  EXPECT_EQ(status_of(message_request, message(R"("thinking": {"type": "adaptive"})")), 200);
}

TEST_F(AgentRequest, AThreadIsRefusedWithTheCodeThatClientsGoOnFrom) {
  try {
    message_request(message(R"("thread": {"type": "create"})"), served_);
    ADD_FAILURE() << "taken";
  } catch (const BadRequest& error) {
    const Json body = Json::parse(error_text(Api::messages, error.status(), error.what(), error.field(), error.code()));
    EXPECT_EQ(body["error"]["type"], "invalid_request_error");
    EXPECT_EQ(body["error"]["details"], Json::parse(R"({"error_code": "thread_unsupported_request",
                                                        "unsupported": ["thread"]})"));
  }
  EXPECT_FALSE(Json::parse(error_text(Api::messages, 400, "no"))["error"].contains("details"));
}

TEST_F(AgentRequest, AResponseIsRefusedByTheNamesThatItHas) {
  for (const auto& [text, field] : Refused{
           {R"("text": {"format": {"type": "text", "schema": {"type": "object"}}})", "text.format.schema"},
           {R"("text": {"format": {"type": "json_object", "schema": {"type": "object"}}})", "text.format.schema"},
           {R"("input": [{"role": "bogus", "content": "a"}])", "input[0].role"},
           {R"("reasoning": {"summary": "long"})", "reasoning.summary"},
           {R"("text": {"verbosity": "none"})", "text.verbosity"},
           {R"("text": {"verbosity": 1})", "text.verbosity"},
           {R"("include": "reasoning.encrypted_content")", "include"},
           {R"("include": ["message.output_text.logprobs"])", "include"},
           {R"("include": ["x"])", "include"},
           {R"("reasoning": {"effort": "low"})", "reasoning.effort"},  // which the template does not name
       }) {
    EXPECT_EQ(refused_field(response_request, response(text)), field) << text;
  }
  const Request request = response_request(response(R"("reasoning": {"summary": "auto"})"), served_);
  ASSERT_EQ(request.notes[0].size(), 1u);
  EXPECT_EQ(request.notes[0][0].find("reasoning.summary: none is made"), 0u);
  config_.max_positions = 4;
  try {
    response_request(response(R"("store": false)"), served_);
    ADD_FAILURE() << "taken";
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.field(), "input");
    EXPECT_EQ(std::string(error.what()).find("input: the prompt has"), 0u) << error.what();
    EXPECT_EQ(error.code(), "context_length_exceeded");
  }
}

TEST_F(AgentRequest, WhatMeansNothingHasItsTypeAllTheSame) {
  const std::string common[] = {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                                "service_tier"};
  for (const std::string& field : common) {
    const std::string wrong = "\"" + field + "\": [1]";
    EXPECT_EQ(refused_field(response_request, response(wrong)), field);
    EXPECT_EQ(refused_field(completion_request, R"({"prompt": "a", )" + wrong + "}"), field);
  }
  const auto chat = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "a"}], )" + more + "}";
  };
  for (const auto& [text, field] : Refused{{R"("metadata": 5)", "metadata"},
                                           {R"("metadata": {"a": 1})", "metadata.a"},
                                           {R"("store": "yes")", "store"},
                                           {R"("cache_prompt": 1)", "cache_prompt"},
                                           {R"("id_slot": "a")", "id_slot"},
                                           {R"("prediction": "a")", "prediction"},
                                           {R"("prediction": {"type": "content"})", "prediction"}}) {
    EXPECT_EQ(refused_field(chat_request, chat(text)), field) << text;
  }
  for (const auto& [text, field] :
       Refused{{R"("metadata": 5)", "metadata"},
               {R"("metadata": {"user_id": 5})", "metadata.user_id"},
               {R"("metadata": {"user": "a"})", "metadata.user"},
               {R"("service_tier": [1])", "service_tier"},
               {R"("cache_control": "x")", "cache_control"},
               {R"("cache_control": {})", "cache_control"},
               {R"("cache_control": {"type": "ephemeral", "ttl": "2h"})", "cache_control.ttl"},
               {R"("cache_control": {"type": "ephemeral", "a": 1})", "cache_control.a"},
               {R"("system": [{"type": "text", "text": "a", "cache_control": 1}])", "system[0].cache_control"}}) {
    EXPECT_EQ(refused_field(message_request, message(text)), field) << text;
  }
  EXPECT_EQ(status_of(message_request, message(R"("metadata": {"user_id": null}, "service_tier": "auto",
      "cache_control": {"type": "ephemeral", "ttl": "1h"})")),
            200);
  EXPECT_EQ(status_of(response_request, response(R"("metadata": {"a": "b"}, "user": "me", "service_tier": "flex")")),
            200);
  EXPECT_EQ(refused_field(response_request, R"({"input": [{"role": "user", "content": "a", "id": 5}]})"),
            "input[0].id");
}

// Templates of Gemma and others refuse turns that do not alternate.
TEST_F(AgentRequest, MessagesOfOneRoleThatStandTogetherAreOneTurn) {
  template_ = ChatTemplate::from_source(
      "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}"
      "{% for c in m.tool_calls %} calls {{ c.function.name }}{% endfor %};{% endfor %}",
      "test");
  const auto prompt = [&](const std::string& messages) {
    const Request request = message_request(
        R"({"max_tokens": 9, "tools": [{"name": "f", "input_schema": {}}], "messages": [)" + messages + "]}", served_);
    const std::string text = tokenizer_.decode(request.generations[0].tokens, true);
    return text.substr(text.find("user:"));
  };
  EXPECT_EQ(prompt(R"({"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]})"),
            "user: |a\nb;");
  EXPECT_EQ(prompt(R"({"role": "user", "content": "a"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [{"type": "text", "text": "c"},
                                        {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
      {"role": "user", "content": "d"},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]})"),
            "user: |a;assistant: t|b\nc calls f;tool: |r;user: |d;");
}

// Counts them as the usage of an answer does.
TEST_F(AgentRequest, ACountHasTheTokensOfASavedContext) {
  const std::filesystem::path path = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  const offload::Threads threads{1};
  const std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  const Model model(path, *backend);
  const offload::Topology topology;
  offload::Arena arena(topology, {.budget_bytes = std::uint64_t{64} << 20});
  const IngestResult book = ingest({model, tokenizer_, path}, arena, "the quiet hay", contexts_.path("book"), {});
  const std::string said = R"(, "messages": [{"role": "user", "content": "a"}]})";
  const Request alone = count_request(R"({"model": "needle")" + said, served_);
  const Request behind = count_request(R"({"model": "needle:book")" + said, served_);
  EXPECT_EQ(messages::count_tokens(alone, served_), static_cast<std::int64_t>(alone.generations[0].tokens.size()));
  EXPECT_EQ(messages::count_tokens(behind, served_),
            book.tokens + static_cast<std::int64_t>(behind.generations[0].tokens.size()));
  std::ofstream(contexts_.path("book")) << "no context";
  EXPECT_THROW(messages::count_tokens(behind, served_), Error);
  std::filesystem::remove(contexts_.path("book"));
  int status = 0;
  try {
    messages::count_tokens(behind, served_);
  } catch (const BadRequest& gone) {
    status = gone.status();
  } catch (const Error&) {
  }
  EXPECT_EQ(status, 404);
}

// Agents ask for as many tokens of any model, and count before they shorten.
TEST_F(AgentRequest, AnAnswerIsBoundedByTheRoomAndACountByNone) {
  const std::string counted = R"({"messages": [{"role": "user", "content": "a"}]})";
  const std::size_t tokens = count_request(counted, served_).generations[0].tokens.size();
  config_.max_positions = static_cast<int>(tokens) + 3;
  const std::string asked = counted.substr(0, counted.size() - 1) + R"(, "max_tokens": 32000})";
  EXPECT_EQ(message_request(asked, served_).generations[0].max_tokens, 3);
  config_.max_positions = static_cast<int>(tokens);
  EXPECT_EQ(refused_field(message_request, asked), "messages");
  EXPECT_EQ(count_request(counted, served_).generations[0].tokens.size(), tokens);
  config_.max_positions = 200;
  const Request response = response_request(R"({"input": "a", "max_output_tokens": 32000})", served_);
  EXPECT_EQ(response.generations[0].max_tokens + static_cast<int>(response.generations[0].tokens.size()), 200);
}

// Agents send these without being asked, and no answer is worse for them.
TEST_F(AgentRequest, WhatHasNothingToDoIsTaken) {
  for (const char* text : {R"("include": ["reasoning.encrypted_content"])", R"("text": {"verbosity": "low"})",
                           R"("reasoning": {"summary": "concise"})", R"("reasoning": {"summary": "detailed"})"}) {
    EXPECT_EQ(status_of(response_request, response(text)), 200) << text;
  }
  EXPECT_EQ(status_of(message_request, message(R"("output_config": {"effort": "max"})")), 200);
  EXPECT_EQ(refused_field(message_request, message(R"("output_config": {"effort": "most"})")), "output_config.effort");
  EXPECT_EQ(refused_field(message_request, message(R"("output_config": {"effort": 1})")), "output_config.effort");
}

TEST_F(AgentRequest, AnEffortReachesATemplateThatKnowsOne) {
  template_ = ChatTemplate::from_source("{{ tools | tojson }}{{ messages[0].content }} {{ reasoning_effort }}", "test");
  for (const auto& [said, told] : Refused{{"low", "low"}, {"medium", "medium"}, {"xhigh", "high"}, {"max", "high"}}) {
    const Request request = message_request(message(R"("output_config": {"effort": ")" + said + "\"}"), served_);
    EXPECT_TRUE(tokenizer_.decode(request.generations[0].tokens, true).ends_with("a " + told)) << said;
  }
}

// The same in a stream and in one piece, so that both have the same calls.
TEST_F(AgentRequest, CallsAreToldEarlyWhereAGrammarHoldsThem) {
  for (const char* stream : {R"("stream": true, )", R"("stream": false, )"}) {
    const std::string with = std::string(stream) + R"("tool_choice": )";
    EXPECT_FALSE(message_request(message(with + R"({"type": "auto"})"), served_).form.early) << stream;
    EXPECT_TRUE(message_request(message(with + R"({"type": "any"})"), served_).form.early) << stream;
  }
}

TEST_F(AgentRequest, AnAnswerThatAFormEndsHasNoLeastLength) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}], "min_tokens": 3,
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], )";
  for (const char* text : {R"("grammar": "root ::= \"a\"")", R"("response_format": {"type": "json_object"})",
                           R"("tool_choice": "required")", R"("parallel_tool_calls": false)"}) {
    EXPECT_EQ(refused_field(chat_request, chat + text + "}"), "min_tokens") << text;
  }
  EXPECT_EQ(status_of(chat_request, chat + R"("response_format": {"type": "text"}})"), 200);
  EXPECT_EQ(refused_field(completion_request, R"({"prompt": "a", "min_tokens": 3, "grammar": "root ::= \"a\""})"),
            "min_tokens");
  served_.sampling.rules.min_new_tokens = 3;  // the checkpoint's own yields
  EXPECT_EQ(status_of(completion_request, R"({"prompt": "a", "grammar": "root ::= \"a\""})"), 200);
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai
