#include <sys/syscall.h>

#include <csignal>
#include <thread>

#include "tests/program/ranks_fixture.h"
#include "tests/program/served.h"

// `mpirun hayloft serve`, to clients that see one server.
namespace hayloft {
namespace {

using nlohmann::json;
using test::greedy;
using test::http;
using test::HttpAnswer;
using test::HttpClient;
using test::needle_model;
using test::Outcome;
using test::run_program;
using test::Served;

class ServeRanksTest : public test::RanksTest {
 protected:
  static std::vector<std::string> command(const std::vector<std::string>& more = {},
                                          const std::filesystem::path& model = needle_model) {
    std::vector<std::string> arguments{"serve", "-m", model, "--port", "0", "--batch", "64", "--block-tokens", "64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static test::Command over_ranks(int ranks, const std::vector<std::string>& more = {}) {
    return {HAYLOFT_MPIRUN, launched(ranks, command(more))};
  }
  static test::Command alone(const std::vector<std::string>& more = {}) { return {HAYLOFT_PROGRAM, command(more)}; }

  static std::string words(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "the quiet hay " + std::to_string(i * 37 % 101) + " ";
    return text;
  }
  static void start_stream(const HttpClient& client, json body) {
    body["stream"] = true;
    const std::string text = body.dump();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(text.size()) +
                "\r\n\r\n" + text);
  }
  // Returns what ranks have of an answer to the bit: log-probabilities have its roundings.
  static json choices(const json& answer) {
    json all = answer["choices"];
    for (json& choice : all) {
      if (choice["logprobs"].is_object()) choice["logprobs"] = choice["logprobs"]["tokens"];
    }
    return all;
  }
};

// Prompts of several blocks a rank, and others that fill none.
TEST_F(ServeRanksTest, AnswersAreThoseOfOneMachine) {
  std::vector<json> requests{greedy("the special number is", 12), greedy(words(60) + "first?", 8),
                             greedy(words(60) + "second?", 8)};  // begins like the one before
  requests.push_back({{"prompt", words(20)}, {"max_tokens", 12}, {"temperature", 0.8}, {"seed", 7}, {"n", 2}});
  json body = greedy(words(30), 8);
  body["logprobs"] = 2;
  requests.push_back(body);
  body["echo"] = true;
  requests.push_back(body);
  body = greedy(words(10), 40);
  body["stop"] = json{"a", "e"};
  requests.push_back(body);
  for (const std::vector<std::string>& method :
       {std::vector<std::string>{}, {"--attn", "sparq", "--attn-k", "64"}, {"--attn", "planes", "--attn-k", "64"}}) {
    std::vector<json> expected;
    Served one(alone(method));
    for (const json& request : requests) expected.push_back(one.completed(request));
    for (const int ranks : {2, 3}) {
      if (ranks == 3 && !method.empty()) continue;
      Served server(over_ranks(ranks, method));
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const json answer = server.completed(requests[i]);
        EXPECT_EQ(choices(answer), choices(expected[i])) << requests[i] << " over " << ranks;
        json usage = answer["usage"], alone = expected[i]["usage"];  // of what was read before, too
        for (const char* counted_by_one : {"attention", "attended_share", "exact"}) {
          usage["hayloft"].erase(counted_by_one);
          alone["hayloft"].erase(counted_by_one);
        }
        EXPECT_EQ(usage, alone) << requests[i];
      }
    }
  }
}

TEST_F(ServeRanksTest, ClientsAtOnceGetWhatEachGetsAlone) {
  const std::filesystem::path model = make_model();  // of several layers that talk
  Served server(test::Command{HAYLOFT_MPIRUN, launched(2, command({"--parallel", "3"}, model))});
  constexpr int clients = 6;
  std::vector<std::string> alone_text(clients), together(clients);
  const auto ask = [](const Served& of, int i) {
    return of.completed(greedy(words(5 + i) + "number " + std::to_string(i), 16))["choices"][0]["text"]
        .get<std::string>();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) threads.emplace_back([&, i] { together[i] = ask(server, i); });
  for (std::thread& thread : threads) thread.join();
  Served other(test::Command{HAYLOFT_PROGRAM, command({}, model)});
  for (int i = 0; i < clients; ++i) alone_text[i] = ask(other, i);
  EXPECT_EQ(together, alone_text);
}

TEST_F(ServeRanksTest, AClientThatHangsUpLeavesTheRanksTogether) {
  Served server(over_ranks(2));
  const json before = server.completed(greedy("hay in the loft", 8));
  {
    const HttpClient client(server.port);
    start_stream(client, greedy(words(20), 1000000));
    ASSERT_FALSE(client.some().empty());
  }
  while (server.program().running() && server.metric("cancelled_total") < 1) {
  }
  EXPECT_EQ(server.completed(greedy("hay in the loft", 8))["choices"], before["choices"]);
}

TEST_F(ServeRanksTest, SavedContextsAreAsked) {
  const std::filesystem::path books = folder_ / "books";
  std::filesystem::create_directory(books);
  write(at("book.txt"), words(200));
  const auto ingest = [&](const char* name) -> std::vector<std::string> {
    return {"ingest", "-m", needle_model, "-f", at("book.txt"), "--save", books / name, "--block-tokens", "64"};
  };
  ASSERT_EQ(run_program(ingest("one.hay")).exit_code, 0);
  ASSERT_EQ(over(3, ingest("three.hay")).exit_code, 0);
  const std::vector<std::string> more{"--contexts", books};
  json expected;
  for (const bool ranks : {false, true}) {
    Served server(ranks ? over_ranks(2, more) : alone(more));
    const std::string model = json::parse(http(server.port, "GET", "/v1/models").body)["data"][0]["id"];
    for (const char* name : {":one", ":three", ":one"}) {
      json body = greedy("the number?", 8);
      body["model"] = model + name;
      const json answer = server.completed(body);
      if (expected.is_null()) expected = answer;
      EXPECT_EQ(answer["choices"], expected["choices"]) << name << ranks;
      EXPECT_GT(answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 200);
    }
    if (!ranks) continue;
    std::filesystem::resize_file(books / "one.hay", 100);
    write(books / "bad.hay", "not a context");
    json body = greedy("the number?", 8);
    body["model"] = model + ":bad";
    EXPECT_GE(server.post("/v1/completions", body).status, 400);
    EXPECT_EQ(server.post("/v1/contexts", {{"name", "new"}, {"text", "hay"}}).status, 501);
    EXPECT_EQ(http(server.port, "DELETE", "/v1/contexts/three").status, 501);
    body["model"] = model + ":three";
    EXPECT_EQ(server.completed(body)["choices"], expected["choices"]) << "after what was refused";
  }
}

TEST_F(ServeRanksTest, WhatOneRankRefusesTheOthersNeverHearOf) {
  std::vector<std::string> apart = launched(1, command({"--host-memory", "64MiB"}));
  apart.push_back(":");
  for (const std::string& argument : launched(1, command({"--host-memory", "8MiB"}))) apart.push_back(argument);
  Served server(test::Command{HAYLOFT_MPIRUN, apart});
  EXPECT_NE(server.program().error_output().find("rank 1 has least memory"), std::string::npos);
  json body = greedy("hay", 4);
  body["hayloft"] = {{"audit", true}};
  const HttpAnswer audit = server.post("/v1/completions", body);
  EXPECT_EQ(audit.status, 400);
  EXPECT_NE(audit.body.find("audit"), std::string::npos) << audit.body;
  EXPECT_EQ(server.post("/v1/completions", greedy(json{5, 1 << 30}, 4)).status, 400);
  EXPECT_EQ(server.post("/v1/completions", greedy("hay", 60000)).status, 507) << "of rank 1";
  EXPECT_EQ(server.completed(greedy("hay", 4))["usage"]["completion_tokens"], 4);
  expect_refused(over(2, command({"--contexts", folder_.path(), "--save-prompts", "1GiB"})), 2, {"--save-prompts"});
  const Outcome taken = over(2, command({"--port", std::to_string(server.port)}));
  expect_refused(taken, 1, {"cannot listen", "--port"});
}

TEST_F(ServeRanksTest, ALostRankEndsTheServer) {
  for (const bool answering : {true, false}) {
    Served server(over_ranks(3));
    const std::vector<pid_t> ranks = server.program().children();
    ASSERT_EQ(ranks.size(), 3u);
    const HttpClient client(server.port);
    if (answering) {
      start_stream(client, greedy("hay", 1000000));
      ASSERT_FALSE(client.some().empty());
    }
    ::kill(ranks[1], SIGKILL);
    const Outcome outcome = server.program().wait();
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find("signal 9"), std::string::npos) << outcome.err;
    EXPECT_LE(own_lines(outcome).size(), 1u) << outcome.err;
    for (const pid_t rank : ranks) wait_until_gone(rank);
  }
}

// After the answers that are being made: by signals to the first rank, and by the one that mpirun passes on.
TEST_F(ServeRanksTest, ASignalEndsItInGoodOrder) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    Served server(over_ranks(2));
    const HttpClient client(server.port);
    start_stream(client, greedy("hay", 100));
    std::string answer = client.some();
    ASSERT_FALSE(answer.empty());
    ::kill(signal == SIGUSR1 ? server.program().id() : server.program().children().at(0), signal);
    for (std::string more = client.some(); !more.empty(); more = client.some()) answer += more;
    EXPECT_NE(answer.find("[DONE]"), std::string::npos) << signal;
    const Outcome outcome = server.program().wait();
    EXPECT_EQ(outcome.exit_code, 0) << signal << outcome.err;
    EXPECT_EQ(own_lines(outcome).size(), 0u) << outcome.err;
  }
}

TEST_F(ServeRanksTest, RanksThatHaveNothingToDoSleep) {
  Served server(over_ranks(2));
  server.completed(greedy("hay", 2));
  const pid_t other = server.program().children().at(1);
  for (int number = -1; server.program().running() && number != SYS_clock_nanosleep;) {
    std::ifstream call("/proc/" + std::to_string(other) + "/syscall");
    if (!(call >> number)) number = -1;
  }
  EXPECT_TRUE(server.program().running());
  EXPECT_EQ(server.completed(greedy("hay", 2))["usage"]["completion_tokens"], 2);
}

}  // namespace
}  // namespace hayloft
