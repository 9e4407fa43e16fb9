#include <gtest/gtest.h>

#include <fstream>

#include "tests/program/served.h"

// What clients of OpenAI's API stumble over: the program as a server, field by field.
namespace hayloft {
namespace {

using nlohmann::json;
using test::greedy;
using test::http;
using test::HttpAnswer;
using test::needle_model;
using test::Served;

// The choices of a stream put together, as clients do it.
json streamed(const Served& server, json body) {
  body["stream"] = true;
  const std::string events = server.post("/v1/completions", body).body;
  json choices = json::array();
  for (std::size_t at = 0; (at = events.find("data: {", at)) != std::string::npos;) {
    const std::size_t end = events.find("\n\n", at);
    const json piece = json::parse(events.substr(at + 6, end - at - 6))["choices"][0];
    at = end;
    while (choices.size() <= piece["index"].get<std::size_t>())
      choices.push_back({{"text", ""}, {"logprobs", nullptr}});
    json& choice = choices[piece["index"].get<std::size_t>()];
    choice["index"] = piece["index"];
    choice["text"] = choice["text"].get<std::string>() + piece["text"].get<std::string>();
    choice["finish_reason"] = piece["finish_reason"];
    if (piece["logprobs"].is_null()) continue;
    for (const auto& [name, list] : piece["logprobs"].items()) {
      for (const json& each : list) choice["logprobs"][name].push_back(each);
    }
  }
  return choices;
}

TEST(ServeApi, AnEchoIsTheSameInAStreamAndInOnePiece) {
  Served server;
  const json prompts{"the hay in the loft", json{"the hay", "a mill é"}, json{5, 6, 7, 8}, json{json{5}, json{6, 7}}};
  for (const json& prompt : prompts) {
    for (const int logprobs : {-1, 2}) {
      for (const int tokens : {0, 2}) {
        for (const int n : {1, 2}) {
          json body = greedy(prompt, tokens);
          body["echo"] = true;
          body["n"] = n;
          if (logprobs >= 0) body["logprobs"] = logprobs;
          const json whole = server.completed(body)["choices"];
          EXPECT_EQ(streamed(server, body), whole) << body;
          const std::string first = prompt.is_string()           ? prompt.get<std::string>()
                                    : prompt.front().is_string() ? prompt.front().get<std::string>()
                                                                 : std::string();
          EXPECT_EQ(whole[0]["text"].get<std::string>().rfind(first, 0), 0u) << whole;
          if (logprobs >= 0) {
            EXPECT_TRUE(whole[0]["logprobs"]["token_logprobs"][0].is_null()) << body;
          }
        }
      }
    }
  }
}

TEST(ServeApi, APromptOfOneTokenIsEchoedWithItsLogProbability) {
  Served server;
  json body = greedy(json{5}, 2);
  body["echo"] = true;
  body["logprobs"] = 1;
  const json told = server.completed(body)["choices"][0]["logprobs"];
  ASSERT_EQ(told["token_logprobs"].size(), 3u);
  EXPECT_TRUE(told["token_logprobs"][0].is_null());
}

// lm-eval takes the last of them off an echo, whatever it is: without one of its own the prompt would lose one.
TEST(ServeApi, ATokenThatEndsACompletionHasItsLogProbability) {
  Served server;
  json body = greedy(json{5, 6, 7}, 1);
  body["echo"] = true;
  body["logprobs"] = 1;
  body["logit_bias"] = json::object({{"0", 100}});  // the end of text
  body["ignore_eos"] = false;
  const json ended = server.completed(body);
  EXPECT_EQ(ended["choices"][0]["finish_reason"], "stop");
  const json& told = ended["choices"][0]["logprobs"];
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(told[list].size(), 4u) << list << told;
  }
  EXPECT_EQ(told["tokens"][3], "<|end_of_text|>");
  EXPECT_EQ(streamed(server, body), ended["choices"]);
}

TEST(ServeApi, SeveralAnswersReadTheirPromptOnce) {
  Served server;
  json body = greedy("the hay in the loft", 2);
  const json one = server.completed(body)["usage"];
  body["n"] = 3;
  const json three = server.completed(body)["usage"];
  EXPECT_EQ(three["prompt_tokens"], one["prompt_tokens"]);
  EXPECT_EQ(three["completion_tokens"], 6);
}

// The end of text, which the model would not say by itself, is made the likeliest token.
json drawn_to_the_end(int tokens) {
  json body = greedy("hay in the loft", tokens);
  body["logit_bias"] = json::object({{"0", 100}});
  return body;
}

TEST(ServeApi, AnAnswerStopsAtASpecialTokenThatIsNamed) {
  Served server;
  ASSERT_EQ(server.completed(drawn_to_the_end(8))["choices"][0]["finish_reason"], "length");
  const std::vector<std::pair<json, int>> stops{
      {json::object({{"stop", json::array({"<|end_of_text|>"})}}), 1},
      {json::object({{"stop", json::array({"x_x", "|end_of"})}}), 1},
      {json::object({{"stop", "_text|><|end"}}), 2},
      {json::object({{"stop_token_ids", json::array({0})}}), 1},
  };
  for (const auto& [stop, tokens] : stops) {
    json asked = drawn_to_the_end(8);
    asked.update(stop);
    const json answer = server.completed(asked);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << stop;
    EXPECT_EQ(answer["choices"][0]["text"], "") << stop;
    EXPECT_EQ(answer["usage"]["completion_tokens"], tokens) << stop;
    EXPECT_EQ(streamed(server, asked), answer["choices"]) << stop;
  }
}

TEST(ServeApi, AnAnswerHasItsLeastTokensBeforeItStops) {
  Served server;
  const json three = server.completed(greedy("hay in the loft", 3))["choices"][0]["text"];
  for (const bool by_eos : {false, true}) {
    json body = drawn_to_the_end(8);
    body["min_tokens"] = 3;
    body["ignore_eos"] = !by_eos;
    if (!by_eos) body["stop_token_ids"] = json::array({0});
    const json answer = server.completed(body);
    EXPECT_EQ(answer["choices"][0]["text"], three) << by_eos;
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << by_eos;
    EXPECT_EQ(answer["usage"]["completion_tokens"], 4) << by_eos;
  }
}

// A copy of the bundled model that was made for 64 positions.
TEST(ServeApi, APromptThatIsTooLongForTheModelIsRefusedWithTheNumbers) {
  const test::TemporaryFolder folder;
  const auto model = folder / "short";
  std::filesystem::copy(needle_model, model, std::filesystem::copy_options::recursive);
  std::ifstream written(needle_model / "config.json");
  json config = json::parse(written);
  config["max_position_embeddings"] = 64;
  std::filesystem::remove(model / "config.json");
  std::ofstream(model / "config.json") << config;
  const json prompt(70, 5);
  {
    Served server({}, model);
    for (const bool stream : {false, true}) {
      json body = greedy(prompt, 2);
      body["stream"] = stream;
      const HttpAnswer refused = server.post("/v1/completions", body);
      EXPECT_EQ(refused.status, 400);
      const json error = json::parse(refused.body)["error"];
      EXPECT_EQ(error["code"], "context_length_exceeded");
      EXPECT_EQ(error["type"], "invalid_request_error");
      EXPECT_EQ(error["param"], "prompt");
      for (const char* number : {"70", "64"})
        EXPECT_NE(error["message"].get<std::string>().find(number), std::string::npos);
    }
    EXPECT_EQ(server.post("/v1/completions", greedy(json(60, 5), 5)).status, 400);
    json unsaid{{"prompt", json(60, 5)}, {"temperature", 0}, {"ignore_eos", true}};
    EXPECT_EQ(server.completed(unsaid)["usage"]["completion_tokens"], 4);
  }
  Served scaled({"--rope-scaling", "linear", "--rope-scale", "2"}, model);
  const json noted = scaled.completed(greedy(prompt, 2))["choices"][0];
  EXPECT_NE(noted["hayloft"]["notes"][0].get<std::string>().find("70 tokens"), std::string::npos) << noted;
  EXPECT_FALSE(scaled.completed(greedy(json(8, 5), 2))["choices"][0].contains("hayloft"));
  EXPECT_EQ(scaled.post("/v1/completions", greedy(json(140, 5), 2)).status, 400);
}

TEST(ServeApi, APathThatIsNoneSaysWhatThereIs) {
  Served server;
  const std::vector<std::pair<std::string, std::string>> meant{
      {"/chat/completions", "/v1/chat/completions"},
      {"/completions", "/v1/completions"},
      {"/v1/chat/completions/", "/v1/chat/completions"},
      {"/v1/v1/completions", "/v1/completions"},
      {"/models", "/v1/models"},
      {"/v1/models/", "/v1/models"},
      {"/v1/contexts/", "/v1/contexts"},
      {"/health/", "/health"},
  };
  for (const auto& [path, there] : meant) {
    const HttpAnswer answer = server.post(path, greedy("a", 1));
    EXPECT_EQ(answer.status, 404) << path;
    EXPECT_NE(json::parse(answer.body)["error"]["message"].get<std::string>().find("but at " + there),
              std::string::npos)
        << answer.body;
  }
  for (const char* path :
       {"/v1/embeddings", "/v1/audio", "/v1/responses/resp_1/input_items", "/api/chat", "/v1", "/v1/", "/x\ty"}) {
    const HttpAnswer answer = http(server.port, "GET", path);
    if (answer.status == 400) continue;  // no path at all
    EXPECT_EQ(answer.status, 404) << path;
    for (const char* there : {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize"}) {
      EXPECT_NE(answer.body.find(there), std::string::npos) << path << answer.body;
    }
  }
}

TEST(ServeApi, APageOfAnotherSiteMaySendTheFieldsThatItsBrowserAsksAbout) {
  Served server({"--cors", "*"});
  const std::string asked = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-retry-count";
  const HttpAnswer answer = http(server.port, "OPTIONS", "/v1/chat/completions", "",
                                 "Origin: https://example.com\r\nAccess-Control-Request-Method: POST\r\n"
                                 "Access-Control-Request-Headers: " +
                                     asked + "\r\n");
  EXPECT_EQ(answer.status, 204);
  EXPECT_NE(answer.head.find("Access-Control-Allow-Headers: " + asked + "\r\n"), std::string::npos) << answer.head;
  const HttpAnswer odd = http(server.port, "OPTIONS", "/v1/models", "",
                              "Origin: https://example.com\r\nAccess-Control-Request-Headers: a\"b\r\n");
  EXPECT_NE(odd.head.find("Access-Control-Allow-Headers: authorization, content-type"), std::string::npos) << odd.head;
}

TEST(ServeApi, TheKeysSchemeMayBeWrittenInAnyCase) {
  const test::TemporaryFolder folder;
  const auto key = folder.write("key", "sesame\n");
  Served server({"--api-key-file", key.string()});
  for (const char* scheme : {"bearer", "BEARER", "Bearer ", "bEARER"}) {
    EXPECT_EQ(
        http(server.port, "GET", "/v1/models", "", "Authorization: " + std::string(scheme) + " sesame\r\n").status, 200)
        << scheme;
  }
  for (const char* given : {"sesame", "Basic sesame", "Bearer", "Bearersesame", "Bearer  "}) {
    EXPECT_EQ(http(server.port, "GET", "/v1/models", "", "Authorization: " + std::string(given) + "\r\n").status, 401)
        << given;
  }
}

// Also where nothing of the request but its head has been read.
TEST(ServeApi, ErrorsAtAMessagesPathHaveAnthropicsForm) {
  const test::TemporaryFolder folder;
  Served server({"--api-key-file", folder.write("key", "sesame\n").string()});
  const std::string key = "x-api-key: sesame\r\n";
  const auto type_of = [&](const std::string& path, const std::string& fields, std::size_t bytes = 2) {
    const json body =
        json::parse(http(server.port, bytes > 2 ? "PUT" : "POST", path, std::string(bytes, ' '), fields).body);
    return body.value("type", "") == "error" ? body["error"]["type"].get<std::string>() : "";
  };
  EXPECT_EQ(type_of("/v1/messages", ""), "authentication_error");
  EXPECT_EQ(type_of("/v1/messages?beta=true", ""), "authentication_error");
  EXPECT_EQ(type_of("/v1/messages", "Origin: https://example.com\r\n"), "permission_error");
  EXPECT_EQ(type_of("/v1/messages", key + "X: a\r\n b\r\n"), "invalid_request_error");
  EXPECT_EQ(type_of("/v1/messages/batches", key), "not_found_error");
  EXPECT_EQ(type_of("/v1/chat/completions", ""), "");
  EXPECT_EQ(type_of("/v1/messages", key, 20000), "request_too_large");
}

// An answer from it would be refused, too.
TEST(ServeApi, AContextOfAnotherModelIsNotCounted) {
  const test::TemporaryFolder folder;
  const std::filesystem::path model = test::needle_model_with_tools(folder);
  const std::string text = folder.write("text.txt", "The quiet hay lies in the loft.");
  for (const std::string base : {"10000", "20000"}) {
    const auto made = test::run_program({"ingest", "-m", model.string(), "-f", text, "--save",
                                         folder / ("base-" + base + ".hay"), "--rope-freq-base", base});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  Served server({"--contexts", folder.path().string(), "--rope-freq-base", "10000"}, model);
  const auto counted = [&](const std::string& context) {
    return server.post("/v1/messages/count_tokens",
                       {{"model", "model:" + context}, {"messages", {{{"role", "user"}, {"content", "hay"}}}}});
  };
  EXPECT_EQ(counted("base-10000").status, 200) << counted("base-10000").body;
  const HttpAnswer refused = counted("base-20000");
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_NE(refused.body.find("base-20000.hay"), std::string::npos) << refused.body;
}

TEST(ServeApi, AContextThatWasSavedElsewhereAfterItFailedHereIsListedOnce) {
  const test::TemporaryFolder folder;
  Served server({"--contexts", folder.path().string()});
  const auto state = [&] { return json::parse(http(server.port, "GET", "/v1/contexts/far").body).value("state", ""); };
  std::filesystem::create_directory(folder / "far.hay");  // in the way
  EXPECT_EQ(server.post("/v1/contexts", {{"name", "far"}, {"text", "The quiet hay."}}).status, 202);
  while (state() == "reading") ::sched_yield();
  EXPECT_EQ(state(), "failed");
  std::filesystem::remove(folder / "far.hay");
  const auto made = test::run_program({"ingest", "-m", test::needle_model.string(), "-f",
                                       folder.write("text.txt", "The quiet hay."), "--save", folder / "far.hay"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(state(), "ready");
  EXPECT_EQ(json::parse(http(server.port, "GET", "/v1/contexts").body)["data"].size(), 1u);
}

TEST(ServeApi, TheSmallerEndpointsIgnoreNothingEither) {
  const test::TemporaryFolder folder;
  Served server({"--contexts", folder.path().string()});
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "a"}, {"with_pieces", true}}).status, 400);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {5}}, {"special", true}}).status, 400);
  EXPECT_EQ(server.post("/v1/contexts", {{"name", "a"}, {"text", "b"}, {"template", "c"}}).status, 400);
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "a"}, {"model", "other"}}).status, 404);
  EXPECT_EQ(http(server.port, "GET", "/v1/contexts?limit=1").status, 400);
  EXPECT_EQ(http(server.port, "GET", "/v1/contexts/a?limit=1").status, 400);
  EXPECT_EQ(http(server.port, "GET", "/v1/contexts").status, 200);
}

}  // namespace
}  // namespace hayloft
