#include <gtest/gtest.h>
#include <sched.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/program/served.h"

// The program as a server, to clients that behave and to others.
namespace hayloft {
namespace {

using nlohmann::json;
using test::greedy;
using test::http;
using test::HttpAnswer;
using test::HttpClient;
using test::needle_model;
using test::Served;

// The data of the events of a stream.
std::vector<std::string> events(const std::string& body) {
  std::vector<std::string> found;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = body.find("\n\n", at);
    found.push_back(body.substr(at + 6, end - at - 6));
    at = end;
  }
  return found;
}

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "the quiet hay " + std::to_string(i * 37 % 101) + " ";
  return text;
}

TEST(Serve, AnswersWhatTheProgramGenerates) {
  Served server;
  const json answer = server.completed(greedy("the special number is", 12));
  const test::Outcome alone = test::run_program(
      {"generate", "-m", needle_model.string(), "-p", "the special number is", "-n", "12", "-t", "2"});
  // `generate` stops at the end of text, the request did not; both begin alike.
  const std::string text = answer["choices"][0]["text"];
  EXPECT_EQ(text.rfind(alone.out.substr(0, alone.out.size() - 1), 0), 0u) << text << " / " << alone.out;
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST(Serve, AStreamJoinedIsTheAnswerInOnePiece) {
  Served server;
  json body = greedy("hay in the loft", 20);
  const std::string whole = server.completed(body)["choices"][0]["text"];
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpAnswer answer = server.post("/v1/completions", body);
  ASSERT_EQ(answer.status, 200);
  const std::vector<std::string> all = events(answer.body);
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all.back(), "[DONE]");
  std::string joined;
  for (std::size_t i = 0; i + 2 < all.size(); ++i) {
    joined += json::parse(all[i])["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(joined, whole);
  EXPECT_EQ(json::parse(all[all.size() - 2])["usage"]["completion_tokens"], 20);
  EXPECT_TRUE(json::parse(all[all.size() - 2])["choices"].empty());
}

TEST(Serve, EchoTellsTheLogProbabilitiesOfThePrompt) {
  Served server;
  json body = greedy(json{5, 6, 7, 8}, 1);
  body["echo"] = true;
  body["logprobs"] = 1;
  const json told = server.completed(body)["choices"][0]["logprobs"];
  ASSERT_EQ(told["token_logprobs"].size(), 5u);
  EXPECT_TRUE(told["token_logprobs"][0].is_null());
  EXPECT_TRUE(told["top_logprobs"][0].is_null());
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_LE(told["token_logprobs"][i].get<double>(), told["top_logprobs"][i].begin()->get<double>()) << i;
  }
  EXPECT_EQ(told["token_logprobs"][4], *told["top_logprobs"][4].begin());  // greedy
}

TEST(Serve, WhatBeginsLikeAnEarlierPromptIsNotReadAgain) {
  Served server({"--batch", "64"});
  const std::string book = words(60);
  const json first = server.completed(greedy(book + "first?", 4));
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const json second = server.completed(greedy(book + "second?", 4));
  const int prompt = second["usage"]["prompt_tokens"];
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), prompt - 2 * 64);
  // The same to the bit as by a server that has read nothing before.
  EXPECT_EQ(Served({"--batch", "64"}).completed(greedy(book + "second?", 4))["choices"], second["choices"]);
}

TEST(Serve, ManyClientsAtOnceGetWhatEachGetsAlone) {
  Served server({"--batch", "64", "--parallel", "4"});
  constexpr int clients = 12;
  std::vector<std::string> alone(clients), together(clients);
  const auto ask = [&](int i) {
    return server.completed(greedy(words(10 + i) + "number " + std::to_string(i), 16))["choices"][0]["text"]
        .get<std::string>();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) threads.emplace_back([&, i] { together[i] = ask(i); });
  for (std::thread& thread : threads) thread.join();
  Served other({"--batch", "64"});
  for (int i = 0; i < clients; ++i) {
    alone[i] = other.completed(greedy(words(10 + i) + "number " + std::to_string(i), 16))["choices"][0]["text"];
  }
  EXPECT_EQ(together, alone);
}

TEST(Serve, AFullQueueIsToldSo) {
  Served server({"--parallel", "1", "--queue", "1"});
  json body = greedy("a", 100000);
  body["stream"] = true;
  const HttpClient running(server.port);
  const auto start = [&](const HttpClient& client) {
    const std::string text = body.dump();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(text.size()) +
                "\r\n\r\n" + text);
  };
  start(running);
  ASSERT_FALSE(running.some().empty());  // it runs
  const HttpClient waiting(server.port);
  start(waiting);
  while (server.program().running() && server.metric("queue") < 1) {
  }
  const HttpAnswer refused = server.post("/v1/completions", greedy("b", 1));
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.head.find("Retry-After"), std::string::npos);
}

TEST(Serve, AnAnswerEndsWhenItsClientLeaves) {
  Served server;
  {
    json body = greedy("a", 1000000);
    body["stream"] = true;
    const std::string text = body.dump();
    const HttpClient client(server.port);
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(text.size()) +
                "\r\n\r\n" + text);
    ASSERT_FALSE(client.some().empty());
  }
  while (server.program().running() && server.metric("cancelled_total") < 1) {
  }
  EXPECT_EQ(server.metric("active"), 0);
}

TEST(Serve, SavedContextsAreMadeAskedAndRemovedByName) {
  const test::TemporaryFolder folder;
  Served server({"--contexts", folder.path().string()});
  const std::string book = words(200);
  EXPECT_EQ(server.post("/v1/contexts", {{"name", "book"}, {"text", book}}).status, 202);
  for (json state = "reading"; state != "ready";) {
    const HttpAnswer answer = http(server.port, "GET", "/v1/contexts/book");
    ASSERT_EQ(answer.status, 200) << answer.body;
    state = json::parse(answer.body)["state"];
    ASSERT_NE(state, "failed") << answer.body;
  }
  json body = greedy("the number?", 8);
  const std::string name = json::parse(http(server.port, "GET", "/v1/models").body)["data"][0]["id"];
  body["model"] = name + ":book";
  const json asked = server.completed(body);
  EXPECT_GT(asked["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 200);
  const test::Outcome alone =
      test::run_program({"ask", (folder / "book.hay").string(), "-p", "the number?", "--template", "{}", "-n", "8",
                         "--attn", "dense", "-t", "2", "-m", needle_model.string()});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(http(server.port, "DELETE", "/v1/contexts/book").status, 200);
  EXPECT_EQ(http(server.port, "GET", "/v1/contexts/book").status, 404);
  EXPECT_EQ(server.post("/v1/completions", body).status, 404);
  EXPECT_FALSE(std::filesystem::exists(folder / "book.hay"));
}

// Characters that are no ASCII are several tokens of the model.
TEST(Serve, TheTextOfASavedContextIsToldTokenByToken) {
  const test::TemporaryFolder folder;
  const auto key = folder.write("key", "sesame\n");
  const std::string allowed = "Authorization: Bearer sesame\r\n";
  Served server({"--contexts", folder.path().string(), "--api-key-file", key.string()});
  const std::string book = "the hay é 乾草 of the loft: " + words(40) + "乾草";
  ASSERT_EQ(server.post("/v1/contexts", {{"name", "text"}, {"text", book}}, allowed).status, 202);
  json context{{"state", "reading"}};
  while (context["state"] == "reading") {
    context = json::parse(http(server.port, "GET", "/v1/contexts/text", "", allowed).body);
  }
  ASSERT_EQ(context["state"], "ready") << context;
  const auto get = [&](const std::string& query, const std::string& name = "text") {
    return http(server.port, "GET", "/v1/contexts/" + name + "/text" + query, "", allowed);
  };
  const json whole = json::parse(get("?from=0&to=4096").body);
  const auto tokens = whole["tokens"].get<int>();
  EXPECT_EQ(whole["tokens"], context["tokens"]);
  EXPECT_EQ(whole["to"], tokens);
  ASSERT_EQ(whole["pieces"].size(), static_cast<std::size_t>(tokens));
  std::string joined;
  for (const json& piece : whole["pieces"]) joined += piece.get<std::string>();
  EXPECT_EQ(joined, book);
  for (int from = 0; from + 5 <= tokens; ++from) {  // a part of it is the same pieces, wherever it begins
    const json part =
        json::parse(get("?to=" + std::to_string(from + 5) + "&from=" + std::to_string(from)).body)["pieces"];
    EXPECT_EQ(part, json(whole["pieces"].begin() + from, whole["pieces"].begin() + from + 5)) << from;
  }
  for (const char* query : {"", "?", "?from=0", "?from=0&to=0", "?from=5&to=4", "?from=0&to=4097", "?from=-1&to=4",
                            "?from=9000&to=9001", "?from=0&to=4&more=1", "?from=0&to=4&to=5", "?from=a&to=4",
                            "?from=0&to=99999999999999999999", "?from=9223372036854775807&to=9223372036854775807"}) {
    const HttpAnswer refused = get(query);
    EXPECT_EQ(refused.status, 400) << query << refused.body;
    EXPECT_EQ(json::parse(refused.body)["error"]["message"].get<std::string>().find('\n'), std::string::npos);
  }
  EXPECT_EQ(get("?from=0&to=4", "none").status, 404);
  EXPECT_EQ(get("?from=0&to=4", "..%2ftext").status, 400);
  EXPECT_EQ(server.post("/v1/contexts/text/text?from=0&to=4", {}, allowed).status, 405);
  EXPECT_EQ(http(server.port, "GET", "/v1/contexts/text/text?from=0&to=4").status, 401);
}

TEST(Serve, NamesAreNeverPaths) {
  const test::TemporaryFolder folder;
  folder.write("secret.hay", "not a context");
  std::filesystem::create_directory(folder / "inner");
  Served server({"--contexts", (folder / "inner").string()});
  for (const char* name : {"../secret", "..%2fsecret", "/etc/passwd", ".", "..", "a/b", "a\\b", "\x1b[2J", ""}) {
    const HttpAnswer made = server.post("/v1/contexts", {{"name", name}, {"text", "hay"}});
    EXPECT_EQ(made.status, 400) << name << made.body;
  }
  EXPECT_GE(http(server.port, "DELETE", "/v1/contexts/../secret").status, 400);
  EXPECT_GE(http(server.port, "GET", "/v1/contexts/..%2fsecret").status, 400);
  EXPECT_TRUE(std::filesystem::exists(folder / "secret.hay"));
}

TEST(Serve, TheKeyIsAskedForWhereThereIsOne) {
  const test::TemporaryFolder folder;
  const auto key = folder.write("key", "sesame\n");
  Served server({"--api-key-file", key.string()});
  EXPECT_EQ(http(server.port, "GET", "/v1/models").status, 401);
  EXPECT_EQ(http(server.port, "GET", "/v1/models", "", "Authorization: Bearer sesam\r\n").status, 401);
  EXPECT_EQ(http(server.port, "GET", "/v1/models", "", "Authorization: Bearer sesame\r\n").status, 200);
  EXPECT_EQ(http(server.port, "GET", "/health").status, 200);
}

TEST(Serve, PagesOfOtherSitesAreKeptOut) {
  Served server;
  EXPECT_EQ(http(server.port, "GET", "/v1/models", "", "Origin: https://example.com\r\n").status, 403);
  EXPECT_EQ(http(server.port, "GET", "/v1/models", "", "Origin: http://127.0.0.1\r\n").status, 200);
  const HttpClient rebound(server.port);
  rebound.send("GET /v1/models HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(rebound.answer().status, 403);
}

TEST(Serve, WhatIsNotHttpIsRefusedAndTheServerGoesOn) {
  Served server;
  const std::vector<std::pair<std::string, int>> sent{
      {"hello\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413},
      {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 431},
      {"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404},
      {"PUT /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n\xff\xfe",
       400},
  };
  for (const auto& [bytes, status] : sent) {
    const HttpClient client(server.port);
    client.send(bytes);
    EXPECT_EQ(client.answer().status, status) << bytes.substr(0, 60);
  }
  EXPECT_EQ(http(server.port, "GET", "/health").status, 200);
}

TEST(Serve, AMethodThatIsNotTakenIsToldThoseThatAre) {
  Served server;
  for (const auto& [method, path, allowed] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"GET", "/v1/completions", "POST, OPTIONS"},
           {"PUT", "/v1/responses/resp_1", "GET, HEAD, DELETE, OPTIONS"},
           {"DELETE", "/v1/contexts", "GET, HEAD, POST, OPTIONS"},
           {"POST", "/v1/contexts/hay", "GET, HEAD, DELETE, OPTIONS"},
           {"POST", "/health", "GET, HEAD, OPTIONS"}}) {
    const HttpAnswer refused = http(server.port, method, path);
    EXPECT_EQ(refused.status, 405) << path;
    EXPECT_NE(refused.head.find("Allow: " + allowed + "\r\n"), std::string::npos) << refused.head;
  }
  EXPECT_EQ(http(server.port, "GET", "/health").head.find("Allow:"), std::string::npos);
}

TEST(Serve, TokensGoThereAndBack) {
  Served server;
  const json tokens = json::parse(server.post("/tokenize", {{"prompt", "the hay"}}).body)["tokens"];
  EXPECT_FALSE(tokens.empty());
  EXPECT_EQ(json::parse(server.post("/detokenize", {{"tokens", tokens}}).body)["prompt"], "the hay");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", "x"}}).status, 400);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {99999999}}}).status, 400);  // no token: left out without a word
  EXPECT_EQ(http(server.port, "GET", "/tokenizer_info").status, 200);
}

TEST(Serve, EndsWhenItIsToldTo) {
  Served server;
  server.program().interrupt();
  EXPECT_EQ(server.program().wait().exit_code, 0);
}

TEST(Serve, APortThatIsTakenIsNamed) {
  Served server;
  EXPECT_TRUE(test::refused_with(
      test::run_program({"serve", "-m", needle_model.string(), "--port", std::to_string(server.port)}), 1,
      {"cannot listen", std::to_string(server.port)}));
}

}  // namespace
}  // namespace hayloft
