#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "tests/program/served.h"
#include "tests/support/temporary_folder.h"

// Asks of the program as a server what agents ask: tools, forms of answers, messages, responses. The needle model
// answers what a grammar makes it answer.
namespace hayloft {
namespace {

using nlohmann::json;
using test::Served;

class ServeAgents : public testing::Test {
 protected:
  ServeAgents() { server_.emplace(std::vector<std::string>{}, test::needle_model_with_tools(folder_)); }

  json ok(const std::string& path, const json& body) const {
    const test::HttpAnswer answer = server_->post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body, nullptr, false);
  }

  // The data of a stream's events, in their order.
  std::vector<json> streamed(const std::string& path, json body) const {
    body["stream"] = true;
    const std::string events = server_->post(path, body).body;
    std::vector<json> all;
    for (std::size_t at = 0; (at = events.find("data: {", at)) != std::string::npos;) {
      const std::size_t end = events.find("\n\n", at);
      all.push_back(json::parse(events.substr(at + 6, end - at - 6)));
      at = end;
    }
    return all;
  }

  static json kinds(const std::vector<json>& events) {
    json all = json::array();
    for (const json& event : events) all.push_back(event["type"]);
    return all;
  }

  test::TemporaryFolder folder_;
  std::optional<Served> server_;
  const json parameters_ = {{"type", "object"},
                            {"properties", {{"bale", {{"enum", {"red", "blue"}}}}}},
                            {"required", {"bale"}},
                            {"additionalProperties", false}};
  const json tools_ = {{{"type", "function"}, {"function", {{"name", "find"}, {"parameters", parameters_}}}}};
  const json said_ = {{{"role", "user"}, {"content", "the hay"}}};
};

TEST_F(ServeAgents, AnAnswerKeepsToItsGrammar) {
  const json body{{"prompt", "the hay"}, {"max_tokens", 40},
                  {"temperature", 2},    {"n", 6},
                  {"seed", 1},           {"grammar", "root ::= \"é\" (\"hay\" | [0-9]{2,4}) \"!\"?"}};
  std::set<std::string> texts;
  const json answers = ok("/v1/completions", body);
  for (const json& choice : answers["choices"]) {
    const std::string text = choice["text"];
    texts.insert(text);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(text.rfind("é", 0), 0u) << text;
    EXPECT_EQ(text.find_first_not_of("hay0123456789!", 2), std::string::npos) << text;
  }
  EXPECT_GT(texts.size(), 1u);
  const json schema{
      {"type", "object"},
      {"properties", {{"a", {{"type", "integer"}, {"minimum", 3}, {"maximum", 20}}}, {"b", {{"type", "null"}}}}},
      {"required", {"a", "b"}}};
  const json format{{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  for (int seed = 0; seed < 4; ++seed) {
    const json answer = ok("/v1/chat/completions",
                           {{"messages", said_}, {"temperature", 1}, {"seed", seed}, {"response_format", format}});
    const json value = json::parse(answer["choices"][0]["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["b"].is_null());
    EXPECT_TRUE(value["a"] >= 3 && value["a"] <= 20) << value;
  }
}

TEST_F(ServeAgents, RulesAndAGrammarThatForbidEverythingAreTheRequestsFault) {
  const json body{
      {"prompt", "the hay"}, {"max_tokens", 40}, {"grammar", "root ::= \"a\"{30}"}, {"no_repeat_ngram_size", 1}};
  const auto answer = server_->post("/v1/completions", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("no token is left to draw"), std::string::npos) << answer.body;
}

TEST_F(ServeAgents, BesideToolsAnAnswerIsACallOrKeepsToItsSchema) {
  const json schema{{"type", "object"},
                    {"properties", {{"a", {{"type", "integer"}, {"minimum", 3}, {"maximum", 20}}}}},
                    {"required", {"a"}}};
  json body{{"messages", said_}, {"tools", tools_}, {"parallel_tool_calls", false},
            {"temperature", 2},  {"n", 8},          {"seed", 1}};
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  int calls = 0, answers = 0;
  const json angle = ok("/tokenize", {{"prompt", "<"}})["tokens"];
  for (const bool strict : {false, true}) {
    body["tools"][0]["function"]["strict"] = strict;
    for (const bool call : {false, true}) {
      body["logit_bias"] = {{angle.back().dump(), call ? 50 : 0}};
      body["max_tokens"] = call && !strict ? 60 : 200;  // arguments of any form may go on for ever
      const json told = ok("/v1/chat/completions", body);
      for (const json& choice : told["choices"]) {
        if (choice["finish_reason"] == "length") continue;
        if (choice["finish_reason"] == "tool_calls") {
          ++calls;
          EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "find");
        } else {
          ++answers;
          EXPECT_FALSE(call);
          const json value = json::parse(choice["message"]["content"].get<std::string>());
          EXPECT_TRUE(value["a"] >= 3 && value["a"] <= 20) << value;
        }
      }
    }
  }
  EXPECT_GT(calls, 0);
  EXPECT_GT(answers, 0);
  body["tool_choice"] = "required";
  const json required = ok("/v1/chat/completions", body);
  for (const json& choice : required["choices"]) EXPECT_NE(choice["finish_reason"], "stop");
}

TEST_F(ServeAgents, ACallIsToldWhileItIsWritten) {
  json body{{"messages", said_}, {"tools", tools_}, {"temperature", 1}};
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "find"}}}};
  body["tools"][0]["function"]["strict"] = true;
  const json choice = ok("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const json call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "find");
  EXPECT_TRUE(json::parse(call["function"]["arguments"].get<std::string>()).contains("bale"));

  json pieces = json::array();
  std::string arguments, ended;
  for (const json& event : streamed("/v1/chat/completions", body)) {
    const json& told = event["choices"][0];
    EXPECT_EQ(told["delta"].value("content", ""), "") << "text that became a call";
    for (const json& each : told["delta"].value("tool_calls", json::array())) pieces.push_back(each);
    if (told["finish_reason"].is_string()) ended = told["finish_reason"];
  }
  ASSERT_GE(pieces.size(), 3u);
  EXPECT_EQ(pieces[0]["function"]["name"], "find");
  EXPECT_TRUE(pieces[0].contains("id"));
  EXPECT_FALSE(pieces[1].contains("id") || pieces[1]["function"].contains("name"));
  for (const json& each : pieces) {
    EXPECT_EQ(each["index"], 0);
    arguments += each["function"]["arguments"].get<std::string>();
  }
  const json bale = json::parse(arguments)["bale"];
  EXPECT_TRUE(bale == "red" || bale == "blue") << pieces;
  EXPECT_EQ(ended, "tool_calls");

  // What was called goes back with its result.
  json more = said_;
  more.push_back({{"role", "assistant"}, {"tool_calls", choice["message"]["tool_calls"]}});
  more.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "in the loft"}});
  EXPECT_EQ(server_->post("/v1/chat/completions", {{"messages", more}, {"tools", tools_}, {"max_tokens", 2}}).status,
            200);

  // One call, of two that the model would make.
  json two{{"messages", said_}, {"tools", tools_}};
  const std::string call_text = R"(<tool_call>{\"name\": \"find\", \"arguments\": {}}</tool_call>)";
  two["grammar"] = "root ::= \"" + call_text + call_text + "\"";
  EXPECT_EQ(ok("/v1/chat/completions", two)["choices"][0]["message"]["tool_calls"].size(), 2u);
  two["parallel_tool_calls"] = false;
  const json once = ok("/v1/chat/completions", two)["choices"][0];
  EXPECT_EQ(once["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(once["finish_reason"], "tool_calls");

  // A tag in an argument does not end the call, told whole or piece by piece, free or held to its schema.
  const std::string tagged = "a</tool_call>b";
  two["grammar"] =
      R"(root ::= "<tool_call>{\"name\": \"find\", \"arguments\": {\"bale\": \"a</tool_call>b\"}}</tool_call>")" +
      std::string(" \"") + call_text + "\"";
  json held = two;
  held.erase("grammar");
  held["tool_choice"] = "required";
  held["tools"][0]["function"]["strict"] = true;
  held["tools"][0]["function"]["parameters"]["properties"]["bale"]["enum"] = {tagged};
  for (const json& each : {two, held}) {
    const json calls = ok("/v1/chat/completions", each)["choices"][0]["message"]["tool_calls"];
    EXPECT_EQ(calls.size(), 1u) << calls;
    EXPECT_EQ(json::parse(calls[0]["function"]["arguments"].get<std::string>())["bale"], tagged) << calls;
    std::string told;
    for (const json& event : streamed("/v1/chat/completions", each)) {
      const json& delta = event["choices"][0]["delta"];
      EXPECT_EQ(delta.value("content", ""), "") << "text behind the call";
      for (const json& piece : delta.value("tool_calls", json::array())) {
        EXPECT_EQ(piece["index"], 0);
        told += piece["function"]["arguments"].get<std::string>();
      }
    }
    EXPECT_EQ(json::parse(told, nullptr, false)["bale"], tagged) << told;
  }

  // No call of these tools: text, to the letter.
  const json other = ok(
      "/v1/chat/completions",
      {{"messages", said_}, {"tools", tools_}, {"grammar", R"(root ::= "<tool_call>hay</tool_call>")"}})["choices"][0];
  EXPECT_EQ(other["message"]["content"], "<tool_call>hay</tool_call>");
  EXPECT_EQ(other["finish_reason"], "stop");
}

TEST_F(ServeAgents, MessagesHaveTheirBlocksAndEvents) {
  json body{{"model", "model"},
            {"max_tokens", 200},
            {"messages", said_},
            {"temperature", 1},
            {"tool_choice", {{"type", "tool"}, {"name", "find"}}}};
  body["tools"] = {{{"name", "find"}, {"input_schema", parameters_}, {"strict", true}}};
  const json whole = ok("/v1/messages", body);
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  ASSERT_EQ(whole["content"].back()["type"], "tool_use");
  EXPECT_TRUE(whole["content"].back()["input"].contains("bale")) << whole;
  const std::vector<json> events = streamed("/v1/messages", body);
  const json order = kinds(events);
  EXPECT_EQ(order.front(), "message_start");
  EXPECT_EQ(order[1], "content_block_start");
  EXPECT_EQ(order[2], "content_block_delta");
  EXPECT_EQ(order[3], "content_block_delta");
  EXPECT_EQ(order[order.size() - 3], "content_block_stop");
  std::string input;
  for (const json& event : events) {
    if (event["type"] == "content_block_delta") input += event["delta"].value("partial_json", "");
  }
  EXPECT_TRUE(json::parse(input).contains("bale")) << input;
  json one = body;
  one["tool_choice"]["disable_parallel_tool_use"] = true;
  EXPECT_EQ(ok("/v1/messages", one)["stop_reason"], "tool_use");
  EXPECT_EQ(order[order.size() - 2], "message_delta");
  EXPECT_EQ(order.back(), "message_stop");

  json more = said_;
  more.push_back({{"role", "assistant"}, {"content", whole["content"]}});
  more.push_back(
      {{"role", "user"},
       {"content", {{{"type", "tool_result"}, {"tool_use_id", whole["content"].back()["id"]}, {"content", "loft"}}}}});
  body["messages"] = more;
  body["tool_choice"] = {{"type", "none"}};
  EXPECT_EQ(ok("/v1/messages", body)["type"], "message");
  body.erase("max_tokens");
  EXPECT_GT(ok("/v1/messages/count_tokens", body)["input_tokens"], 5);

  const json refused = json::parse(server_->post("/v1/messages", body).body);
  EXPECT_EQ(refused["type"], "error");
  EXPECT_EQ(refused["error"]["type"], "invalid_request_error");
  EXPECT_EQ(refused["error"]["message"].get<std::string>().rfind("max_tokens", 0), 0u);
  for (const json& wrong : std::vector<json>{{{"type", "image"}},
                                             {{"type", "text"}},
                                             {{"type", "tool_result"}, {"tool_use_id", "x"}},
                                             {{"type", "text"}, {"text", "a"}, {"x", 1}},
                                             5}) {
    EXPECT_EQ(
        server_->post("/v1/messages", {{"max_tokens", 1}, {"messages", {{{"role", "user"}, {"content", {wrong}}}}}})
            .status,
        400)
        << wrong;
  }
}

TEST_F(ServeAgents, ABillingHeaderIsLeftOut) {
  const std::string rules(400, 'a');
  const auto ask = [&](const std::string& head) {
    const json system{{{"type", "text"}, {"text", "x-anthropic-billing-header: cch=" + head}},
                      {{"type", "text"}, {"text", rules}}};
    return ok("/v1/messages", {{"max_tokens", 1}, {"messages", said_}, {"system", system}, {"temperature", 0}});
  };
  const json first = ask("1a2b3"), second = ask("4d5e6f7");
  EXPECT_NE(first["hayloft"]["notes"][0].get<std::string>().find("billing header"), std::string::npos);
  EXPECT_EQ(first["usage"]["input_tokens"].get<int>() + first["usage"]["cache_read_input_tokens"].get<int>(),
            second["usage"]["input_tokens"].get<int>() + second["usage"]["cache_read_input_tokens"].get<int>());
  EXPECT_EQ(server_->metric("reread_tokens_total{why=\"changed\"}"), 0);
}

TEST_F(ServeAgents, AResponseIsGoneOnFrom) {
  json body{{"input", "the hay"}, {"temperature", 0}, {"max_output_tokens", 4}, {"instructions", "brief"}};
  const json first = ok("/v1/responses", body);
  EXPECT_EQ(first["object"], "response");
  EXPECT_EQ(first["instructions"], "brief");
  body["input"] = "more";
  body["previous_response_id"] = first["id"];
  const json second = ok("/v1/responses", body);
  EXPECT_GT(second["usage"]["input_tokens"], first["usage"]["input_tokens"]);
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  const std::vector<json> events = streamed("/v1/responses", body);
  ASSERT_GE(events.size(), 3u);
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["response"]["output"].size(), second["output"].size());
  const auto told_again = [&](const json& id, const std::string& query) {
    return test::http(server_->port, "GET", "/v1/responses/" + id.get<std::string>() + query);
  };
  EXPECT_EQ(json::parse(told_again(first["id"], "").body), first);
  EXPECT_EQ(json::parse(told_again(events.back()["response"]["id"], "").body), events.back()["response"]);
  EXPECT_EQ(told_again(first["id"], "?stream=true").status, 400);
  EXPECT_EQ(test::http(server_->port, "DELETE", "/v1/responses/" + first["id"].get<std::string>()).status, 200);
  EXPECT_EQ(told_again(first["id"], "").status, 404);
  EXPECT_EQ(server_->post("/v1/responses", body).status, 404);

  body = {{"input", said_}, {"temperature", 1}};
  body["tool_choice"] = {{"type", "function"}, {"name", "find"}};
  body["tools"] = {{{"type", "function"}, {"name", "find"}, {"parameters", parameters_}, {"strict", true}}};
  const json called = ok("/v1/responses", body)["output"].back();
  EXPECT_EQ(called["type"], "function_call");
  std::string arguments;
  std::size_t deltas = 0;
  const std::vector<json> calling = streamed("/v1/responses", body);
  for (const json& event : calling) {
    if (event["type"] == "response.function_call_arguments.delta") {
      arguments += event["delta"].get<std::string>();
      ++deltas;
    }
    if (event["type"] == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], arguments);
    }
  }
  EXPECT_GT(deltas, 1u);
  EXPECT_TRUE(json::parse(arguments).contains("bale")) << arguments;
  EXPECT_EQ(calling.back()["response"]["output"].back()["arguments"], arguments);
  EXPECT_EQ(calling.back()["response"]["output"].back()["status"], "completed");
  body["input"].push_back(called);
  body["input"].push_back({{"type", "function_call_output"}, {"call_id", called["call_id"]}, {"output", "loft"}});
  body["tool_choice"] = "auto";
  body["max_output_tokens"] = 2;
  EXPECT_EQ(ok("/v1/responses", body)["object"], "response");
}

}  // namespace
}  // namespace hayloft
