#include <random>

#include "runtime/serve/responses/response_request.h"
#include "runtime/serve/responses/response_store.h"
#include "runtime/serve/responses/response_writer.h"
#include "tests/runtime/serve/request_fixture.h"

// Conversations of /v1/responses, by their ids and by their items.
namespace hayloft::runtime::serve::openai {
namespace {

using responses::response_request;

class ResponseItems : public OpenAiRequestTest {
 protected:
  ResponseItems() {
    template_ = ChatTemplate::from_source(
        "{# <|channel|> <|message|> #}{{ tools | tojson }}{% for m in messages %}{{ m.role }}"
        "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}: {{ m.content }}"
        "{% for c in m.tool_calls %}<{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.id }}>{% endfor %}"
        "{{ m.tool_call_id }};{% endfor %}",
        "test");
    served_.responses = &store_;
  }

  std::string prompt(const Json& body) const {
    return tokenizer_.decode(response_request(body.dump(), served_).generations[0].tokens);
  }
  std::string refusal(const Json& body) const {
    try {
      response_request(body.dump(), served_);
      return "";
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.status(), 400);
      return error.what();
    }
  }

  // The response to a request whose answer is of these messages: "channel|text" or "function|arguments".
  Json answered(const Json& body, const std::vector<std::pair<std::string, std::string>>& messages) {
    const Request request = response_request(body.dump(), served_);
    responses::ResponseWriter writer(request, 0);
    writer.begin();
    for (const auto& [head, text] : messages) {
      GeneratedToken token;
      token.runs = {{"<|start|>", true},   {"assistant"}, {"<|channel|>", true}, {head},
                    {"<|message|>", true}, {text},        {"<|end|>", true}};
      writer.generated(0, token);
    }
    writer.finished(0, FinishReason::stop, "", {});
    return Json::parse(writer.whole());
  }

  static Json output_of(const Json& call) {
    return {{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "hay"}};
  }
  static Json call(const std::string& id) {
    return {{"type", "function_call"}, {"call_id", id}, {"name", "f"}, {"arguments", "{}"}};
  }
  static Json said(const std::string& role, const std::string& text) { return {{"role", role}, {"content", text}}; }

  responses::ResponseStore store_;
  const Json tools_ = {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}};
};

TEST_F(ResponseItems, AConversationIsTheSameByIdAndByItems) {
  const std::pair<std::string, std::string> kinds[] = {{"analysis", "I think."},
                                                       {"commentary", "I look."},
                                                       {"final", "Hay."},
                                                       {"commentary to=functions.f", R"({"a": 1})"}};
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    Json items = Json::array();
    std::string previous;
    for (int turn = 0; turn < 3; ++turn) {
      Json input = Json::array();
      for (const Json& item : items) {
        if (item.value("type", "") != "function_call") continue;
        const auto is_its = [&](const Json& each) {
          return each.value("type", "") == "function_call_output" && each["call_id"] == item["call_id"];
        };
        if (std::ranges::none_of(items, is_its)) input.push_back(output_of(item));
      }
      if (input.empty() || random() % 2 == 0) input.push_back(said("user", "and " + std::to_string(turn)));
      Json body{{"input", input}, {"tools", tools_}};
      if (!previous.empty()) body["previous_response_id"] = previous;
      for (const Json& item : input) items.push_back(item);
      ASSERT_EQ(prompt(body), prompt({{"input", items}, {"tools", tools_}})) << items;
      std::vector<std::pair<std::string, std::string>> answer;
      for (std::size_t n = random() % 5; n-- > 0;) answer.push_back(kinds[random() % 4]);
      const Json response = answered(body, answer);
      ASSERT_FALSE(response["output"].empty());
      for (const Json& item : response["output"]) items.push_back(item);
      previous = response["id"];
    }
  }
}

TEST_F(ResponseItems, WhatTheAssistantSaysAndThinksIsOneMessage) {
  const Json think{{"type", "reasoning"}, {"content", Json::array({{{"type", "reasoning_text"}, {"text", "A"}}})}};
  Json again = think;
  again["content"][0]["text"] = "B";
  EXPECT_EQ(
      prompt({{"input",
               {said("user", "a"), think, said("assistant", "c"), again, call("1"), said("assistant", "d"), call("2"),
                output_of(call("1")), output_of(call("2")), again, said("assistant", "e"), said("user", "b")}}}),
      "nulluser: a;assistant(A\nB): c\nd<f{}1><f{}2>;tool: hay1;tool: hay2;assistant(B): e;user: b;");
}

TEST_F(ResponseItems, ACallWithoutItsOutputIsRefused) {
  EXPECT_NE(refusal({{"input", {said("user", "a"), call("x1"), said("user", "b")}}})
                .find("No tool output found for function call x1"),
            std::string::npos);
  EXPECT_NE(refusal({{"input", {said("user", "a"), call("x1"), call("x2"), output_of(call("x2"))}}})
                .find("No tool output found for function call x1"),
            std::string::npos);
  EXPECT_NE(refusal({{"input", {said("user", "a"), call("x1")}}}), "");
  // Each needs its own, where ids come again.
  EXPECT_NE(refusal({{"input", {call("x"), output_of(call("x")), said("user", "a"), call("x"), said("user", "b")}}}),
            "");
  EXPECT_EQ(refusal({{"input", {call("x"), output_of(call("x")), call("x"), output_of(call("x"))}}}), "");
  const Json called = answered({{"input", "a"}, {"tools", tools_}}, {{"commentary to=functions.f", "{}"}});
  const Json next{{"input", "b"}, {"previous_response_id", called["id"]}};
  EXPECT_NE(refusal(next).find("No tool output found for function call call_"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai
