#include <gtest/gtest.h>

#include "tests/program/served.h"

// Tests what the server does beyond OpenAI's API: long prompts on the disk, and the audit of an answer.
namespace hayloft {
namespace {

using nlohmann::json;
using test::greedy;
using test::Served;

std::string book(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) text += "the quiet hay " + std::to_string(i * 37 % 101) + " ";
  return text;
}

TEST(ServeExtension, APromptThatWasReadIsNotReadAgainByTheNextServer) {
  const test::TemporaryFolder folder;
  const std::vector<std::string> options{"--contexts", folder.path().string(), "--batch", "64"};
  const json request = greedy(book(700) + "the number?", 6);
  json first;
  {
    Served server(options);
    first = server.completed(request);
    ASSERT_GT(first["usage"]["prompt_tokens"], 2100);
    while (server.program().running() && server.metric("saved_prompt_bytes") < 1) server.completed(greedy("a", 1));
  }  // killed
  Served server(options);
  const json again = server.completed(request);
  EXPECT_EQ(again["choices"], first["choices"]);
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(),
            again["usage"]["prompt_tokens"].get<int>() - 2 * 64);
  EXPECT_TRUE(json::parse(test::http(server.port, "GET", "/v1/contexts").body)["data"].empty());
}

TEST(ServeExtension, NoPromptIsSavedWhereThatIsNotWanted) {
  const test::TemporaryFolder folder;
  Served server({"--contexts", folder.path().string(), "--batch", "64", "--save-prompts", "0"});
  server.completed(greedy(book(700), 2));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ServeExtension, AnAnswerTellsWhatWasReadWhatWasCaughtAndFromWhere) {
  Served server({"--attn", "sparq:r=8:k=64", "--batch", "64", "--block-tokens", "128"});
  const std::string needle = "the special number of the barn is 7391. ";
  json body = greedy(book(100) + needle + book(100), 8);
  const json plain = server.completed(body);
  EXPECT_FALSE(plain["choices"][0].contains("hayloft"));
  body["hayloft"] = {{"audit", true}, {"quotes", 3}};
  const json answer = server.completed(body);
  EXPECT_EQ(answer["choices"][0]["text"], plain["choices"][0]["text"]);
  const json audit = answer["choices"][0]["hayloft"];
  EXPECT_GT(audit["samples"], 0);
  EXPECT_GT(audit["recall"], 0);
  EXPECT_LE(audit["recall"], 1);
  EXPECT_GT(audit["mass"], audit["least_mass"].get<double>() * 0.999);
  EXPECT_LT(audit["attended_share"], 1);
  EXPECT_GT(audit["read_bytes"], 0);
  ASSERT_EQ(audit["quotes"].size(), 3u);
  for (const json& quote : audit["quotes"]) {
    EXPECT_FALSE(quote["text"].get<std::string>().empty());
    EXPECT_LT(quote["position"], plain["usage"]["prompt_tokens"]);
  }
}

TEST(ServeExtension, AStreamTellsItWithItsLastPiece) {
  Served server;
  json body = greedy(book(20), 8);
  body["stream"] = true;
  body["hayloft"] = {{"quotes", 1}};
  const std::string streamed = server.post("/v1/completions", body).body;
  const std::size_t at = streamed.find("\"hayloft\":{");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(at, streamed.rfind("\"finish_reason\":null"));
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"hayloft", {{"quotes", 99}}}}).status, 400);
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"hayloft", 5}}).status, 400);
}

TEST(ServeExtension, WeightsAndRopeAreAsForGenerate) {
  Served server({"--weights", "q8", "--rope-freq-base", "20000"});
  const std::string text = server.completed(greedy("the special number is", 6))["choices"][0]["text"];
  const test::Outcome alone =
      test::run_program({"generate", "-m", test::needle_model.string(), "-p", "the special number is", "-n", "6", "-t",
                         "2", "--weights", "q8", "--rope-freq-base", "20000"});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(text.rfind(alone.out.substr(0, alone.out.size() - 1), 0), 0u) << text << " / " << alone.out;
}

}  // namespace
}  // namespace hayloft
