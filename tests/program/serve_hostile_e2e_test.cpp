#include <gtest/gtest.h>

#include <deque>
#include <thread>
#include <vector>

#include "tests/program/hostile_requests.h"
#include "tests/program/served.h"

// Tests what no client should send: each is refused with a reason, and the server answers the next one.
namespace hayloft {
namespace {

using nlohmann::json;
using test::below;
using test::greedy;
using test::head;
using test::http;
using test::HttpAnswer;
using test::HttpClient;
using test::one_of;
using test::post;
using test::Random;
using test::Served;

const std::string completions = "/v1/completions";
const std::string chat = "/v1/chat/completions";

const std::vector<std::pair<std::string, std::string>> valid{
    {completions, R"({"prompt": "the hay", "max_tokens": 1, "temperature": 0.5, "stop": ["x", "y"], "seed": 7})"},
    {completions, R"({"prompt": [[5, 6], [7]], "max_tokens": 1, "echo": true, "logprobs": 1, "n": 2})"},
    {chat, R"({"messages": [{"role": "user", "content": "hay?"}], "max_tokens": 1, "stream": true})"},
    {"/tokenize", R"({"prompt": "the hay", "add_special_tokens": true})"},
    {"/detokenize", R"({"tokens": [5, 6, 7]})"},
    {"/v1/contexts", R"({"name": "book", "text": "hay"})"},
};

// A few bytes of a valid body changed, so that it is no JSON any more.
std::string changed_json(Random& random) {
  auto [path, body] = one_of(random, valid);
  for (std::size_t n = 1 + below(random, 4); n > 0; --n) {
    const std::size_t at = below(random, body.size());
    switch (below(random, 3)) {
      case 0:
        body[at] = static_cast<char>(below(random, 256));
        break;
      case 1:
        body.erase(at, 1 + below(random, 5));
        break;
      default:
        body.insert(at, 1 + below(random, 3), one_of<char>(random, {'"', '{', '[', ']', ',', '\\', '\0'}));
    }
    if (body.empty()) body = "{";
  }
  while (json::accept(body)) body.pop_back();
  return post(path, body);
}

std::string wrong_type(Random& random) {
  const json object = json::object({{"a", 1}});
  const std::vector<std::pair<std::string, std::vector<json>>> fields{
      {"prompt", {5, true, object, json::array({object}), json::array({"a", 5}), json::array({5, "a"}), ""}},
      {"max_tokens", {"1", 1.5, true, json::array({1}), object, -1, 0}},
      {"temperature", {"hot", true, json::array(), object, -1, 101}},
      {"top_p", {"a", 1.5, -0.1, object}},
      {"top_k", {"a", 1.5, object}},
      {"stop", {5, object, json::array({5}), json::array({nullptr})}},
      {"stream", {1, "true", object}},
      {"stream_options", {5, "a", json::array()}},
      {"echo", {"yes", 1}},
      {"logprobs", {true, "a", 21, -1}},
      {"seed", {"a", 1.5, object}},
      {"n", {0, -1, 129, "a", 1.5}},
      {"model", {5, object, "other", "", "model:"}},
      {"logit_bias", {json::object({{"5", "a"}}), json::object({{"-1", 1}}), 5, "a"}},
      {"frequency_penalty", {3, "a", object}},
      {"stop_token_ids", {5, "a", json::array({-1}), object}},
      {"tools", {json::array(), json::array({5}), object}},
      {"no_such_field", {5, "a", object}},
  };
  const auto& [field, values] = one_of(random, fields);
  json body = greedy("a", 1);
  body[field] = one_of(random, values);
  return post(completions, body.dump());
}

std::string wrong_message(Random& random) {
  const std::vector<json> messages{
      5,
      "a",
      json::array(),
      json::object(),
      json::array({5}),
      json::array({{{"content", "a"}}}),
      json::array({{{"role", 5}, {"content", "a"}}}),
      json::array({{{"role", "user"}, {"content", 5}}}),
      json::array({{{"role", "user"}, {"content", json::array({{{"type", "image_url"}}})}}}),
      json::array({{{"role", "user"}, {"content", json::array({{{"type", "text"}, {"text", 5}}})}}})};
  return post(chat, json{{"messages", one_of(random, messages)}, {"max_tokens", 1}}.dump());
}

std::string huge_number(Random& random) {
  const std::string field = one_of<std::string>(
      random, {"max_tokens", "n", "logprobs", "temperature", "top_p", "min_p", "seed", "top_k", "prompt"});
  const std::string number = one_of<std::string>(
      random, {"1e999", "-1e999", "18446744073709551616", "-9223372036854775809", "1e308", "-0.5",
               "9223372036854775808", std::string(400, '9'), "1e-", "0x10", "Infinity", "NaN", "+1", "01"});
  return post(completions, (field == "prompt" ? R"({"prompt": [)" + number + "]}"
                                              : R"({"prompt": "a", ")" + field + "\": " + number + "}"));
}

// Text that is not UTF-8, or cut within a character.
std::string broken_text(Random& random) {
  const std::string bad = one_of<std::string>(
      random, {"\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf", "\xf5\x80\x80\x80", "\\ud800",
               "\\udc00\\ud800", "\\u12", std::string(1, '\0'), "\x1b[2J", "\n"});
  return one_of<std::string>(random, {post(completions, R"({"prompt": "hay )" + bad + "\"}"),
                                      post(chat, R"({"messages": [{"role": "user", "content": "hay )" + bad + "\"}]}"),
                                      post("/tokenize", R"({"prompt": "hay )" + bad + "\"}"),
                                      post("/v1/contexts", R"({"text": "hay", "name": "b)" + bad + "\"}")});
}

std::string traversal(Random& random) {
  const std::string name =
      one_of<std::string>(random, {"../secret", "..", ".", "/etc/passwd", "a/../../b", "..\\secret", "%2e%2e%2fsecret",
                                   "secret%00", "a b", "-rf", ".hidden", std::string(101, 'a'), "", "con:", "~root"});
  return one_of<std::string>(
      random, {post("/v1/contexts", json{{"name", name}, {"text", "hay"}}.dump()),
               post(completions, json{{"prompt", "a"}, {"model", "model:" + name}}.dump()),
               head("GET", "/v1/contexts/..%2f" + std::to_string(below(random, 9)), ""),
               head("DELETE", "/v1/contexts/../../secret.hay", ""), head("GET", "/../../../etc/passwd", "")});
}

std::string bad_chunks(Random& random) {
  const std::string chunks =
      one_of<std::string>(random, {"zz\r\n{}\r\n0\r\n\r\n", "-1\r\n{}\r\n", "ffffffffffffffffff\r\n{}",
                                   "2\r\n{}xx0\r\n\r\n", "2{}\r\n0\r\n", "7fffffffffffffff\r\n{}", "\r\n\r\n",
                                   "2\r\n{}\r\n0\r\nno field\r\n\r\n", "2;" + std::string(20000, 'x')});
  return head("POST", completions, "Transfer-Encoding: chunked\r\n") + chunks;
}

std::string bad_length(Random& random) {
  const std::string length = one_of<std::string>(
      random, {"-1", "x", "1.5", "18446744073709551616", "99999999999", "0x10", "5, 6", "", " ", "1e3"});
  return head("POST", completions, "Content-Length: " + length + "\r\n") + R"({"prompt": "a"})";
}

std::string bad_head(Random& random) {
  std::string bytes(1 + below(random, 200), ' ');
  for (char& byte : bytes) byte = static_cast<char>(below(random, 256));
  return one_of<std::string>(
      random,
      {bytes + "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/3.0\r\n\r\n", "get  / HTTP/1.1\r\n\r\n",
       "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\n: no name\r\n\r\n",
       "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", "GET / HTTP/1.1\r\nHost: a" + bytes + "\x01\r\n\r\n",
       "GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n\r\n",
       "GET / HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00" + bytes + "\r\n",
       "POST " + completions + " HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
       "GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n"});
}

std::string deep(Random& random) {
  const std::size_t depth = 101 + below(random, 200000);
  const std::string nested =
      one_of<std::string>(random, {std::string(depth, '[') + std::string(depth, ']'), std::string(depth, '['), [&] {
                                     std::string objects;
                                     for (std::size_t i = 0; i < depth; ++i) objects += R"({"a":)";
                                     return objects + "1" + std::string(depth, '}');
                                   }()});
  return one_of<std::string>(
      random, {post(completions, R"({"prompt": )" + nested + "}"),
               post(completions, R"({"prompt": "a", "stop": )" + nested + "}"),
               post(chat, R"({"messages": [{"role": "user", "content": "a", "x": )" + nested + "}]}"),
               post(chat, R"({"messages": [{"role": "user", "content": "a"}], "tools": )" + nested + "}"),
               post("/detokenize", R"({"tokens": )" + nested + "}"), post("/v1/contexts", nested)});
}

std::string wrong_place(Random& random) {
  const std::string path = one_of<std::string>(
      random, {"/", "/v1", "/v1/completions/", "/health", "/v2/models", "/v1/models/none", "*", "/%",
               "http://example.com/health", "/v1/contexts/none", "/v1/contexts/none/text?from=0&to=4", "/metrics"});
  return head(one_of<std::string>(random, {"PUT", "PATCH", "TRACE", "BREW", "POST"}), path, "Content-Length: 0\r\n");
}

// A request that stops somewhere.
std::string unfinished(Random& random) {
  const auto& [path, body] = one_of(random, valid);
  const std::string whole = post(path, body);
  return whole.substr(0, below(random, whole.size()));
}

using Make = std::string (*)(Random&);
const std::vector<Make> kinds{changed_json, wrong_type, wrong_message, huge_number, broken_text, traversal,
                              bad_chunks,   bad_length, bad_head,      deep,        wrong_place, unfinished};

void send_some(std::uint16_t port, unsigned seed, int count) {
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    const Make make = kinds[static_cast<std::size_t>(i) % kinds.size()];
    const std::string bytes = make(random);
    const HttpClient client(port);
    send(client, bytes, random);
    const HttpAnswer answer = client.answer();
    const std::string sent = bytes.substr(0, 300);
    EXPECT_FALSE(answer.reset) << sent;
    if (answer.status == 0 && make == unfinished) continue;  // closed: there was nothing to answer
    EXPECT_GE(answer.status, 400) << sent;
    EXPECT_LT(answer.status, 500) << sent << "\n" << answer.body;
    const json body = json::parse(answer.body, nullptr, false);
    ASSERT_TRUE(body.is_object() && body["error"]["message"].is_string()) << sent << "\n" << answer.body;
    EXPECT_FALSE(body["error"]["message"].get<std::string>().empty()) << sent;
  }
}

TEST(ServeHostile, TwoThousandBadRequestsAreRefusedWithAReason) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "contexts");
  folder.write("secret.hay", "not a context");
  Served server({"--contexts", (folder / "contexts").string()});
  const json before = server.completed(greedy("the special number is", 8))["choices"];
  std::deque<HttpClient> silent;  // begin and say no more
  for (int i = 0; i < 32; ++i) silent.emplace_back(server.port).send("POST /v1/completions HTT");
  std::vector<std::thread> clients;
  for (unsigned seed = 1; seed <= 4; ++seed) clients.emplace_back([&, seed] { send_some(server.port, seed, 500); });
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(server.program().running()) << server.program().error_output();
  EXPECT_EQ(http(server.port, "GET", "/health").status, 200);
  EXPECT_EQ(server.completed(greedy("the special number is", 8))["choices"], before);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "contexts"));
  EXPECT_TRUE(std::filesystem::exists(folder / "secret.hay"));
  server.program().interrupt();
  EXPECT_EQ(server.program().wait().exit_code, 0) << server.program().error_output();
}

TEST(ServeHostile, ABodyThatIsTooLargeIsRefusedWhileItIsStillBeingSent) {
  Served server;
  const HttpClient client(server.port);
  client.send(head("POST", completions, "Content-Length: 99999999999\r\n"));
  client.send(std::string(std::size_t{8} << 20, 'a'));
  const HttpAnswer answer = client.answer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_FALSE(answer.reset);
}

// Whoever asks whether the server lives does not wait behind them.
TEST(ServeHostile, LargeBodiesDoNotHoldAProbeUp) {
  Served server;
  const std::string large = post("/tokenize", json{{"prompt", std::string(std::size_t{4} << 20, 'a')}}.dump());
  std::deque<HttpClient> clients;
  for (int i = 0; i < 12; ++i) clients.emplace_back(server.port).send(large);
  EXPECT_EQ(http(server.port, "GET", "/health").status, 200);
  const auto told = std::ranges::count_if(clients, [](const HttpClient& client) { return client.told(); });
  EXPECT_LT(told, 11) << "of two workers one at most still reads when a probe behind all bodies comes to its turn";
}

TEST(ServeHostile, CharactersMayArriveInPieces) {
  Served server;
  const std::string text = "das Heu \xC3\xA4 \xF0\x9F\x8C\xBE \xE2\x82\xAC";
  const std::string whole = post("/tokenize", json{{"prompt", text}}.dump());
  const HttpClient client(server.port);
  for (const char byte : whole) client.send({&byte, 1});
  EXPECT_EQ(client.answer().body, server.post("/tokenize", {{"prompt", text}}).body);
}

TEST(ServeHostile, HeadHasNoBodyAndOldClientsGetNoChunks) {
  Served server;
  const HttpClient asks(server.port);
  asks.send(head("HEAD", "/health", ""));
  const HttpAnswer answer = asks.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  const HttpClient old(server.port);
  json body = greedy("hay", 3);
  body["stream"] = true;
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.dump().size()) + "\r\n\r\n" +
           body.dump());
  const HttpAnswer streamed = old.answer();
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.head.find("chunked"), std::string::npos);
  EXPECT_NE(streamed.body.find("\n\ndata: {"), std::string::npos) << streamed.body;
  EXPECT_NE(streamed.body.find("data: [DONE]"), std::string::npos);
}

TEST(ServeHostile, AStreamThatNobodyReadsGivesItsPlaceUp) {
  Served server({"--parallel", "2", "--save-prompts", "0"});
  json body = greedy("the special number is", 150000);
  body["stream"] = true;
  std::deque<HttpClient> deaf;  // ask, and never read
  for (int i = 0; i < 4; ++i) {
    body["prompt"] = "the special number " + std::to_string(i) + " is";
    deaf.emplace_back(server.port, 4096).send(post(completions, body.dump()));
  }
  EXPECT_EQ(server.completed(greedy("the hay is", 4))["usage"]["completion_tokens"], 4);
  EXPECT_GE(server.metric("cancelled_total"), 1);
  EXPECT_EQ(server.metric("finished_total"), 1);
}

}  // namespace
}  // namespace hayloft
