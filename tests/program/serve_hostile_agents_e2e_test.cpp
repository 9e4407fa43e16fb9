#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/program/hostile_requests.h"
#include "tests/program/served.h"

// Tests what no agent should send: messages, responses, schemas and grammars. Each is refused with a reason, and the
// server answers the next one.
namespace hayloft {
namespace {

using nlohmann::json;
using test::below;
using test::http;
using test::HttpAnswer;
using test::HttpClient;
using test::one_of;
using test::post;
using test::Random;
using test::Served;

const std::string messages = "/v1/messages";
const std::string counted = "/v1/messages/count_tokens";
const std::string responses = "/v1/responses";
const std::string chats = "/v1/chat/completions";

const json said{{{"role", "user"}, {"content", "hay?"}}};

// Of a body that is right, something at some place in it.
std::string wrong_value(Random& random) {
  const std::vector<std::pair<std::string, json>> bodies{
      {messages,
       {{"max_tokens", 1},
        {"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}}}}}},
        {"system", {{{"type", "text"}, {"text", "a"}}}},
        {"stop_sequences", {"x"}},
        {"tools", {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}}},
        {"tool_choice", {{"type", "auto"}}}}},
      {counted, {{"messages", said}}},
      {responses,
       {{"input", {{{"type", "message"}, {"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "a"}}}}}}},
        {"max_output_tokens", 1},
        {"text", {{"format", {{"type", "text"}}}}},
        {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}}},
        {"reasoning", {{"effort", "low"}}}}},
  };
  auto [path, body] = one_of(random, bodies);
  json* where = &body;
  for (std::size_t depth = below(random, 4); depth > 0; --depth) {
    std::vector<json*> inner;
    for (auto& [name, each] : where->items()) {
      const bool schema = name == "input_schema" || name == "parameters";  // which holds what it likes
      if (each.is_structured() && !each.empty() && !schema) inner.push_back(&each);
    }
    if (inner.empty()) break;
    where = one_of(random, inner);
  }
  const json junk = one_of<json>(random, {json::array({json::array()}), -1.5, json::object({{"x", 1}}), true});
  if (where->is_array()) {
    (*where)[below(random, where->size())] = junk;
  } else {
    (*where)["no_such_field"] = junk;
  }
  return post(path, body.dump());
}

std::string wrong_block(Random& random) {
  const std::string role = one_of<std::string>(random, {"user", "assistant", "system", "tool", "", "model"});
  const std::vector<json> blocks{{{"type", "image"}, {"source", {{"type", "base64"}, {"data", "AAAA"}}}},
                                 {{"type", "document"}},
                                 {{"type", "server_tool_use"}, {"id", "a"}},
                                 {{"type", ""}},
                                 {{"type", 5}},
                                 {{"text", "no type"}},
                                 {{"type", "text"}},
                                 {{"type", "text"}, {"text", nullptr}},
                                 {{"type", "tool_use"}, {"id", "a"}, {"name", "f"}, {"input", "text"}},
                                 {{"type", "tool_use"}, {"id", "a"}, {"input", json::object()}},
                                 {{"type", "tool_result"}, {"tool_use_id", "of nobody"}, {"content", "a"}},
                                 {{"type", "tool_result"}, {"tool_use_id", 5}},
                                 {{"type", "thinking"}, {"thinking", 5}},
                                 {{"type", "redacted_thinking"}, {"data", "a"}},
                                 {{"type", std::string(100000, 'x')}},
                                 5,
                                 json::array()};
  const json body{{"max_tokens", 1},
                  {"messages", {{{"role", role}, {"content", json::array({one_of(random, blocks)})}}}}};
  return post(one_of<std::string>(random, {messages, counted}), body.dump());
}

std::string wrong_item(Random& random) {
  const std::vector<json> items{
      {{"type", "image_generation_call"}, {"id", "a"}},
      {{"type", "item_reference"}, {"id", "a"}},
      {{"type", "message"}, {"content", "no role"}},
      {{"type", "message"}, {"role", "user"}, {"content", {{{"type", "input_image"}, {"image_url", "x"}}}}},
      {{"type", "function_call"}, {"name", "f"}, {"arguments", "{}"}},
      {{"type", "function_call"}, {"call_id", "a"}, {"name", "f"}, {"arguments", json::object()}},
      {{"type", "function_call_output"}, {"call_id", "of nobody"}, {"output", "a"}},
      {{"type", "function_call_output"}, {"call_id", "a"}, {"output", 5}},
      {{"type", "reasoning"}, {"summary", 5}},
      5,
      "text",
      nullptr};
  return post(responses, json{{"input", json::array({one_of(random, items)})}, {"max_output_tokens", 1}}.dump());
}

// An earlier response of nobody, or what is no id.
std::string wrong_earlier(Random& random) {
  const json id = one_of<json>(random, {"resp_0", "", "../resp", std::string(100000, 'r'), 5, json::array(), "\xc3\xa9",
                                        "resp_00000000000000000000000000000000", json::object(), true});
  return post(responses, json{{"input", "a"}, {"previous_response_id", id}, {"max_output_tokens", 1}}.dump());
}

std::string agents_number(Random& random) {
  const std::string number =
      one_of<std::string>(random, {"1e999", "-1e999", "18446744073709551616", "-9223372036854775809", "-0.5",
                                   std::string(400, '9'), "1e-", "NaN", "+1", "01", "99999999999999", "-1"});
  const bool message = below(random, 2) == 0;
  const std::string field = message ? one_of<std::string>(random, {"max_tokens", "top_k", "temperature", "top_p"})
                                    : one_of<std::string>(random, {"max_output_tokens", "temperature", "top_p"});
  const std::string rest = message ? R"("messages": [{"role": "user", "content": "a"}])" : R"("input": "a")";
  const std::string most = message && field != "max_tokens" ? R"("max_tokens": 1, )" : "";
  return post(message ? messages : responses, "{" + most + rest + ", \"" + field + "\": " + number + "}");
}

std::string agents_text(Random& random) {
  const std::string bad = one_of<std::string>(
      random, {"\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf", "\\ud800", "\\u12", "\n"});
  return one_of<std::string>(
      random, {post(messages, R"({"max_tokens": 1, "messages": [{"role": "user", "content": "hay )" + bad + "\"}]}"),
               post(messages,
                    R"({"max_tokens": 1, "system": ")" + bad + R"(", "messages": [{"role": "user", "content": "a"}]})"),
               post(responses, R"({"max_output_tokens": 1, "input": "hay )" + bad + "\"}"),
               post(responses, R"({"max_output_tokens": 1, "input": "a", "instructions": ")" + bad + "\"}")});
}

std::string agents_depth(Random& random) {
  const std::size_t depth = 101 + below(random, 100000);
  const std::string lists = std::string(depth, '[') + std::string(depth, ']');
  std::string schema;
  for (std::size_t i = 0; i < depth; ++i) schema += R"({"type":"array","items":)";
  schema += "{}" + std::string(depth, '}');
  const std::string user = R"("messages": [{"role": "user", "content": "a"}])";
  return one_of<std::string>(
      random,
      {post(messages, R"({"max_tokens": 1, "messages": )" + lists + "}"),
       post(messages, R"({"max_tokens": 1, "system": )" + lists + ", " + user + "}"),
       post(messages, R"({"max_tokens": 1, "tools": [{"name": "f", "input_schema": )" + schema + "}], " + user + "}"),
       post(responses, R"({"input": )" + lists + "}"),
       post(responses,
            R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "a", "schema": )" + schema + "}}}"),
       post(chats, R"({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": )" + schema +
                       "}}, " + user + "}")});
}

// Schemas without an end, without sense, or too large to be held to.
std::string wrong_schema(Random& random) {
  json many{{"type", "object"}, {"properties", json::object()}};
  for (int i = 0; i < 20000; ++i) many["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  json doubled{{"$ref", "#/$defs/d0"}, {"$defs", json::object()}};  // 2^40 of them, were each written out
  for (int i = 0; i < 40; ++i) {
    const std::string next = "#/$defs/d" + std::to_string(i + 1);
    doubled["$defs"]["d" + std::to_string(i)] = {{"anyOf", {{{"$ref", next}}, {{"$ref", next}}}}};
  }
  const std::vector<json> schemas{
      many,
      doubled,
      {{"$ref", "#"}},
      {{"$ref", "#/$defs/a"}, {"$defs", {{"a", {{"$ref", "#/$defs/b"}}}, {"b", {{"$ref", "#/$defs/a"}}}}}},
      {{"$ref", "http://example.com/schema.json"}},
      {{"$ref", "#/$defs/none"}},
      {{"$ref", "#/" + std::string(100000, '/')}},
      {{"type", "string"}, {"minLength", 1e18}},
      {{"type", "string"}, {"minLength", 5}, {"maxLength", 2}},
      {{"type", "string"}, {"maxLength", -1}},
      {{"type", "array"}, {"items", {{"type", "string"}}}, {"minItems", 4000000000U}},
      {{"type", "integer"}, {"minimum", 5}, {"maximum", 4}},
      {{"type", "integer"}, {"minimum", 1e300}},
      {{"type", "string"}, {"pattern", "(a+)+$"}},
      {{"type", "string"}, {"format", "regex"}},
      {{"type", "tuple"}},
      {{"enum", json::array()}},
      {{"anyOf", json::array()}},
      {{"required", {"a"}}, {"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}},
      {{"not", json::object()}},
      5,
      "object",
      json::array({json::object()})};
  const json& schema = one_of(random, schemas);
  return one_of<std::string>(
      random,
      {post(chats, json{{"messages", said},
                        {"max_tokens", 1},
                        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}}
                       .dump()),
       post(responses, json{{"input", "a"},
                            {"max_output_tokens", 1},
                            {"text", {{"format", {{"type", "json_schema"}, {"name", "a"}, {"schema", schema}}}}}}
                           .dump()),
       post(messages, json{{"messages", said},
                           {"max_tokens", 1},
                           {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}}
                          .dump())});
}

// Grammars that call themselves before they read a byte, have no end, or are none.
std::string wrong_grammar(Random& random) {
  std::string nested = "root ::= ";
  for (int i = 0; i < 100000; ++i) nested += "(";
  const std::string grammar = one_of<std::string>(random, {"root ::= root",
                                                           "root ::= root \"a\"",
                                                           "root ::= a\na ::= b\nb ::= a | \"x\"",
                                                           "root ::= (\"\")*",
                                                           "root ::= (\"a\"?)*",
                                                           "root ::= a*\na ::= \"\"",
                                                           "root ::= \"a\"{4000000000}",
                                                           "root ::= other",
                                                           "root :: = \"a\"",
                                                           "root ::= [z-a]",
                                                           "root ::= \"unclosed",
                                                           "root ::= [",
                                                           "root ::= (",
                                                           "a ::= \"no root\"",
                                                           "",
                                                           nested,
                                                           "root ::= \"\\u12\"",
                                                           "root ::= \"a\"{3,2}",
                                                           "root ::= \"a\"{-1}",
                                                           "root ::= *",
                                                           "root ::= \xff"});
  const json body{{"messages", said}, {"max_tokens", 1}, {"grammar", grammar}};
  return post(chats, body.dump(-1, ' ', false, json::error_handler_t::replace));
}

using Make = std::string (*)(Random&);
const std::vector<Make> agent_kinds{wrong_value, wrong_block,  wrong_item,   wrong_earlier, agents_number,
                                    agents_text, agents_depth, wrong_schema, wrong_grammar};

void send_to_agents(std::uint16_t port, unsigned seed, int count) {
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    const std::string bytes = agent_kinds[static_cast<std::size_t>(i) % agent_kinds.size()](random);
    const HttpClient client(port);
    test::send(client, bytes, random);
    const HttpAnswer answer = client.answer();
    const std::string sent = bytes.substr(0, 600);
    EXPECT_FALSE(answer.reset) << sent;
    EXPECT_GE(answer.status, 400) << sent << "\n" << answer.body.substr(0, 300);
    EXPECT_LT(answer.status, 500) << sent << "\n" << answer.body;
    const json body = json::parse(answer.body, nullptr, false);
    ASSERT_TRUE(body.is_object() && body.contains("error") && body["error"]["message"].is_string()) << sent << "\n"
                                                                                                    << answer.body;
    EXPECT_FALSE(body["error"]["message"].get<std::string>().empty()) << sent;
    EXPECT_LT(answer.body.size(), 5000u) << sent;
  }
}

TEST(ServeHostileAgents, BadRequestsOfAgentsAreRefusedWithAReason) {
  const test::TemporaryFolder folder;
  Served server({}, test::needle_model_with_tools(folder));
  const json asked{{"max_tokens", 8}, {"messages", said}, {"temperature", 0}};
  const auto content = [&] { return json::parse(server.post(messages, asked).body)["content"]; };
  const json before = content();
  ASSERT_FALSE(before.is_null());
  std::vector<std::thread> clients;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    clients.emplace_back([&, seed] { send_to_agents(server.port, seed, 250); });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(server.program().running()) << server.program().error_output();
  EXPECT_EQ(content(), before);
  server.program().interrupt();
  EXPECT_EQ(server.program().wait().exit_code, 0) << server.program().error_output();
}

// What another client was answered nobody goes on from who does not know its id; who removes it ends it for all.
TEST(ServeHostileAgents, AResponseThatIsGoneIsGone) {
  const test::TemporaryFolder folder;
  Served server({}, test::needle_model_with_tools(folder));
  const json asked{{"input", "hay"}, {"max_output_tokens", 2}, {"temperature", 0}};
  const std::string id = json::parse(server.post(responses, asked).body)["id"];
  json next = asked;
  next["previous_response_id"] = id;
  EXPECT_EQ(server.post(responses, next).status, 200);
  next["previous_response_id"] = id.substr(0, id.size() - 1) + (id.back() == '0' ? '1' : '0');
  EXPECT_EQ(server.post(responses, next).status, 404);
  EXPECT_EQ(http(server.port, "DELETE", "/v1/responses/" + id).status, 200);
  EXPECT_EQ(http(server.port, "DELETE", "/v1/responses/" + id).status, 404);
  next["previous_response_id"] = id;
  EXPECT_EQ(server.post(responses, next).status, 404);
}

}  // namespace
}  // namespace hayloft
