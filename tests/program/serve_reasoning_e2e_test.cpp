#include <gtest/gtest.h>

#include "tests/program/served.h"

// Asks a model whose template begins the answer inside of reasoning, which the needle model never ends of itself.
namespace hayloft {
namespace {

using nlohmann::json;
using test::Served;

class ServeReasoning : public testing::Test {
 protected:
  ServeReasoning() {
    std::filesystem::path model = folder_.path() / "model";
    std::filesystem::copy(test::needle_model, model);
    folder_.write("model/chat_template.jinja",
                  "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<think>\n{# </think> #}");
    server_.emplace(std::vector<std::string>{}, model);
  }

  json ok(const std::string& path, const json& body) const {
    const test::HttpAnswer answer = server_->post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body, nullptr, false);
  }

  // The data of the last event of a stream that has usage.
  json last_usage(const std::string& path, json body) const {
    body["stream"] = true;
    const std::string events = server_->post(path, body).body;
    const std::size_t at = events.rfind("data: {", events.rfind("\"usage\":{"));
    return json::parse(events.substr(at + 6, events.find("\n\n", at) - at - 6));
  }

  test::TemporaryFolder folder_;
  std::optional<Served> server_;
  const json said_ = {{{"role", "user"}, {"content", "the hay"}}};
  const json schema_ = {{"enum", {"red", "blue"}}};  // behind the reasoning, so that this does not end early
};

TEST_F(ServeReasoning, ABudgetEndsIt) {
  json body{{"max_tokens", 60}, {"messages", said_}, {"temperature", 0}};
  body["output_config"] = {{"format", {{"type", "json_schema"}, {"schema", schema_}}}};
  const json unbound = ok("/v1/messages", body);
  EXPECT_EQ(unbound["stop_reason"], "max_tokens");
  EXPECT_EQ(unbound["usage"]["output_tokens_details"]["thinking_tokens"], 60);
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 5}};
  const json whole = ok("/v1/messages", body);
  EXPECT_EQ(whole["stop_reason"], "end_turn") << whole;
  ASSERT_EQ(whole["content"].size(), 2u) << whole;
  EXPECT_EQ(whole["content"][0]["type"], "thinking");
  const std::string text = whole["content"][1]["text"];
  EXPECT_TRUE(text == "\"red\"" || text == "\"blue\"") << text;
  EXPECT_LT(whole["usage"]["output_tokens_details"]["thinking_tokens"], whole["usage"]["output_tokens"]);

  // Streamed to the letter.
  body["stream"] = true;
  const std::string events = server_->post("/v1/messages", body).body;
  std::string thinking, answer;
  for (std::size_t at = 0; (at = events.find("data: {", at)) != std::string::npos;) {
    const std::size_t end = events.find("\n\n", at);
    const json event = json::parse(events.substr(at + 6, end - at - 6));
    if (event["type"] == "content_block_delta") {
      thinking += event["delta"].value("thinking", "");
      answer += event["delta"].value("text", "");
    }
    at = end;
  }
  EXPECT_EQ(thinking, whole["content"][0]["thinking"]);
  EXPECT_EQ(answer, text);
}

TEST_F(ServeReasoning, ItsTokensAreCounted) {
  json chat{{"messages", said_}, {"max_tokens", 12}, {"temperature", 0}};
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", schema_}}}};
  EXPECT_EQ(ok("/v1/chat/completions", chat)["usage"]["completion_tokens_details"]["reasoning_tokens"], 12);
  chat["stream_options"] = {{"include_usage", true}};
  EXPECT_EQ(last_usage("/v1/chat/completions", chat)["usage"]["completion_tokens_details"]["reasoning_tokens"], 12);
  json response{{"input", "the hay"}, {"max_output_tokens", 12}, {"temperature", 0}};
  response["text"] = {{"format", {{"type", "json_schema"}, {"schema", schema_}}}};
  const json counted{{"reasoning_tokens", 12}};
  EXPECT_EQ(ok("/v1/responses", response)["usage"]["output_tokens_details"], counted);
  EXPECT_EQ(last_usage("/v1/responses", response)["response"]["usage"]["output_tokens_details"], counted);
}

}  // namespace
}  // namespace hayloft
