#include "runtime/serve/openai/answer.h"

#include <gtest/gtest.h>

#include <tuple>

#include "runtime/decode/load_tokenizer.h"

// Answers in one piece and in a stream, and the log-probabilities in them.
namespace hayloft::runtime::serve::openai {
namespace {

const std::filesystem::path model_folder = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";

class AnswerTest : public ::testing::Test {
 protected:
  AnswerTest() : tokenizer_(load_tokenizer(model_folder)) {
    request_.model = "needle";
    add_choice("the hay é");
  }

  void add_choice(const std::string& prompt) {
    GenerationRequest generation;
    generation.tokens = tokenizer_.encode_prompt(prompt);
    request_.generations.push_back(generation);
    request_.prompts.push_back(prompt);
    request_.notes.emplace_back();
  }

  // An echo with log-probabilities of what was read.
  void echo(int logprobs) {
    request_.echo = true;
    request_.logprobs = logprobs;
    for (GenerationRequest& each : request_.generations) {
      each.echo = logprobs >= 0;
      each.logprobs = logprobs;
    }
  }

  TokenChoice choice(std::int32_t token) const {
    TokenChoice made{{token, -0.5F}, {}};
    for (int i = 0; i < request_.logprobs; ++i) made.top.push_back({token + i, -0.5F - static_cast<float>(i)});
    return made;
  }

  // What the engine tells of an answer of these texts, to `answer`; the chunks that it makes.
  std::vector<std::string> told(Answer& answer, const std::vector<std::string>& texts) const {
    std::vector<std::string> chunks;
    const auto add = [&](const std::string& data) {
      if (!data.empty()) chunks.push_back(data);
    };
    for (std::size_t i = 0; i < request_.generations.size(); ++i) add(answer.begin(i));
    for (std::size_t i = 0; i < request_.generations.size(); ++i) {
      const GenerationRequest& generation = request_.generations[i];
      if (generation.echo) {
        std::vector<TokenChoice> prompt;
        for (std::size_t at = 1; at < generation.tokens.size(); ++at) prompt.push_back(choice(generation.tokens[at]));
        add(answer.scored(i, prompt));
      }
      for (const std::string& text : texts) {
        std::string said = text;  // by its first token
        for (const std::int32_t token : tokenizer_.encode(text)) {
          add(answer.generated(i, {choice(token), std::exchange(said, {})}));
        }
      }
      Usage usage{.prompt_tokens = 7, .cached_tokens = 3, .completion_tokens = 5};
      if (audit_) usage.audit = std::make_shared<const AnswerAudit>();
      add(answer.finished(i, FinishReason::length, " and rest", usage));
    }
    return chunks;
  }

  // Choices put together from the chunks of a stream, as its clients do it.
  static Json joined(const std::vector<std::string>& chunks) {
    Json choices = Json::array();
    for (const std::string& chunk : chunks) {
      const Json object = Json::parse(chunk);
      const Json& piece = object["choices"][0];
      const std::size_t index = piece["index"];
      while (choices.size() <= index) choices.push_back(Json::object());
      Json& choice = choices[index];
      const bool chat = piece.contains("delta");
      Json& content = chat ? choice["message"]["content"] : choice["text"];
      if (content.is_null()) content = "";
      content = content.get<std::string>() + (chat ? piece["delta"].value("content", "") : piece.value("text", ""));
      if (chat && piece["delta"].contains("role")) choice["message"]["role"] = piece["delta"]["role"];
      for (const char* name : {"index", "finish_reason", "hayloft"}) {
        if (piece.contains(name)) choice[name] = piece[name];
      }
      if (piece["logprobs"].is_null()) {
        choice["logprobs"] = nullptr;
        continue;
      }
      for (const auto& [name, list] : piece["logprobs"].items()) {
        Json& all = choice["logprobs"][name];
        if (all.is_null()) all = Json::array();
        for (const Json& each : list) all.push_back(each);
      }
    }
    return choices;
  }

  void expect_the_same_both_ways() {
    request_.stream = true;
    Answer streamed(request_, tokenizer_, "id", 0);
    const Json choices = joined(told(streamed, {"hay", "", "loft"}));
    request_.stream = false;
    Answer whole(request_, tokenizer_, "id", 0);
    EXPECT_TRUE(told(whole, {"hay", "", "loft"}).empty());
    Json expected = Json::parse(whole.whole())["choices"];
    for (Json& each : expected) {
      if (each.contains("message")) each["message"].erase("refusal");  // of which a stream says nothing
    }
    // In any order of fields.
    EXPECT_EQ(nlohmann::json::parse(choices.dump()), nlohmann::json::parse(expected.dump()));
  }

  Json whole(const std::vector<std::string>& texts) const {
    Answer answer(request_, tokenizer_, "id", 0);
    told(answer, texts);
    return Json::parse(answer.whole());
  }

  Tokenizer tokenizer_;
  Request request_;
  bool audit_ = false;
};

TEST_F(AnswerTest, ThePiecesOfAStreamAddUpToTheWhole) {
  for (const bool chat : {false, true}) {
    for (const int logprobs : {-1, 0, 3}) {
      for (const bool with_echo : {false, true}) {
        if (chat && with_echo) continue;
        for (const bool more : {false, true}) {
          request_ = {};
          request_.style = chat ? Style::chat : Style::completion;
          add_choice("the hay é");
          request_.logprobs = logprobs;
          if (with_echo) echo(logprobs);
          if (more) {
            add_choice("other");
            request_.generations[1].echo = request_.generations[0].echo;
            request_.notes[1] = {"a note"};
          }
          audit_ = more;
          SCOPED_TRACE(::testing::Message() << chat << logprobs << with_echo << more);
          expect_the_same_both_ways();
        }
      }
    }
  }
}

TEST_F(AnswerTest, AnEchoBeginsTheText) {
  for (const int logprobs : {-1, 1}) {
    echo(logprobs);
    EXPECT_EQ(whole({"hay"})["choices"][0]["text"], "the hay éhay and rest") << logprobs;
  }
}

TEST_F(AnswerTest, APromptIsCountedOnceForAllItsAnswers) {
  request_.copies = 2;
  add_choice("the hay é");
  add_choice("other");
  add_choice("other");
  const Json usage = whole({"hay"})["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 2 * 7);
  EXPECT_EQ(usage["completion_tokens"], 4 * 5);
  EXPECT_EQ(usage["total_tokens"], 2 * 7 + 4 * 5);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 2 * 3);
}

TEST_F(AnswerTest, UsageSaysWhetherAllAnswersAttendedToEverything) {
  add_choice("other");
  for (const bool exact : {true, false}) {
    Answer answer(request_, tokenizer_, "id", 0);
    Usage first, second;
    first.attention.steps = second.attention.steps = 2;
    first.attention.attended = 2;
    second.attention.attended = exact ? 2 : 1;
    first.attention.methods = {{"dense", 4}};
    second.attention.methods = {{exact ? "dense" : "sparq r=16 k=128", 4}};
    answer.finished(0, FinishReason::length, "", first);
    answer.finished(1, FinishReason::length, "", second);
    for (const std::string& said : {answer.whole(), answer.usage_chunk()}) {
      const Json told = Json::parse(said)["usage"]["hayloft"];
      EXPECT_EQ(told["exact"], exact);
      EXPECT_EQ(told["attention"], exact ? "exact"
                                         : "approximate: 75.0% of the positions attended to, by dense in 4 steps x "
                                           "layers, sparq r=16 k=128 in 4");
      EXPECT_EQ(told["attended_share"], exact ? 1 : 0.75);
    }
  }
}

TEST_F(AnswerTest, UsageOfAChatCountsReasoning) {
  add_choice("other");
  for (const bool chat : {false, true}) {
    request_.style = chat ? Style::chat : Style::completion;
    Answer answer(request_, tokenizer_, "id", 0);
    for (const std::size_t i : {0, 1}) {
      answer.finished(i, FinishReason::length, "", {.completion_tokens = 9, .reasoning_tokens = 4});
    }
    for (const std::string& said : {answer.whole(), answer.usage_chunk()}) {
      const Json usage = Json::parse(said)["usage"];
      const Json expected = chat ? Json{{"reasoning_tokens", 8}} : Json();
      EXPECT_EQ(usage.value("completion_tokens_details", Json()), expected);
    }
  }
}

TEST_F(AnswerTest, OffsetsAreThoseOfCharacters) {
  const std::string text = "é→𝄞 hay";
  request_.logprobs = 0;
  const std::vector<std::int32_t> tokens = tokenizer_.encode(text);
  Answer answer(request_, tokenizer_, "id", 0);
  for (const std::int32_t token : tokens) answer.generated(0, {choice(token), ""});
  answer.finished(0, FinishReason::length, text, {});
  const Json told = Json::parse(answer.whole())["choices"][0]["logprobs"];
  // As Python counts them: of the tokens before, all whole characters.
  ASSERT_EQ(told["text_offset"].size(), tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string before = tokenizer_.decode({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i)});
    std::int64_t characters = 0;
    for (std::size_t at = 0; at < before.size();) {
      const auto lead = static_cast<unsigned char>(before[at]);
      const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      if (at + length <= before.size()) ++characters;
      at += length;
    }
    EXPECT_EQ(told["text_offset"][i], characters) << i;
  }
}

TEST_F(AnswerTest, OffsetsBehindAnEchoBeginWhereThePromptEnds) {
  echo(0);
  const Json told = whole({"hay"})["choices"][0]["logprobs"];
  const std::size_t prompt = request_.generations[0].tokens.size();
  EXPECT_EQ(told["text_offset"][0], 0);
  EXPECT_EQ(told["text_offset"][prompt], 9);  // "the hay é" as Python counts it
}

TEST_F(AnswerTest, AsManyLikelyTokensAsWereAskedForAreTold) {
  request_.logprobs = 20;
  // Parts of characters: single bytes, none of which is a text.
  TokenChoice made{{}, {}};
  for (std::int32_t token = 0; token < tokenizer_.vocab_size() && made.top.size() < 20; ++token) {
    const std::string bytes = tokenizer_.decode({token});
    if (bytes.size() == 1 && static_cast<unsigned char>(bytes[0]) >= 0xf5) {
      made.top.push_back({token, -1.0F * static_cast<float>(made.top.size())});
    } else if (token % 500 == 7) {
      made.top.push_back({token, -1.0F * static_cast<float>(made.top.size())});
    }
  }
  ASSERT_EQ(made.top.size(), 20u);
  made.top.back() = {made.top.front().token, -30};  // a text twice, as two tokens of one text have it
  made.chosen = made.top[2];
  Answer answer(request_, tokenizer_, "id", 0);
  answer.generated(0, {made, ""});
  answer.finished(0, FinishReason::length, "", {});
  const Json told = Json::parse(answer.whole())["choices"][0]["logprobs"];
  const Json& top = told["top_logprobs"][0];
  ASSERT_EQ(top.size(), 20u);
  double before = 1;
  for (const auto& [name, logprob] : top.items()) {  // most likely first
    EXPECT_LT(logprob.get<double>(), before) << name;
    before = logprob;
  }
  EXPECT_EQ(top[told["tokens"][0].get<std::string>()], told["token_logprobs"][0]);
}

TEST_F(AnswerTest, PartsOfCharactersAreGivenByTheirBytes) {
  request_.logprobs = 0;
  const std::vector<std::int32_t> tokens = tokenizer_.encode("𝄞");
  ASSERT_GT(tokens.size(), 1u);
  Answer answer(request_, tokenizer_, "id", 0);
  for (const std::int32_t token : tokens) answer.generated(0, {choice(token), ""});
  answer.finished(0, FinishReason::length, "𝄞", {});
  const Json told = Json::parse(answer.whole())["choices"][0]["logprobs"]["tokens"];
  std::string bytes;
  for (const Json& each : told) {
    ASSERT_TRUE(each.get<std::string>().starts_with("bytes:")) << each;
    bytes += each.get<std::string>().substr(6);
  }
  EXPECT_EQ(bytes, R"(\xf0\x9d\x84\x9e)");  // as OpenAI's API writes them
}

TEST_F(AnswerTest, ACallIsTheSameInAStreamAndInOnePiece) {
  request_.style = Style::chat;
  request_.form.tags = true;
  request_.form.early = true;
  request_.form.tools = {{"f"}};
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"a": [1, "b"]}}</tool_call>)";
  // By its last bytes or a stop string within it: what is cut off is no reason for a client to call.
  for (const auto& [text, arguments, reason] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {call, R"({"a":[1,"b"]})", "tool_calls"}, {call.substr(0, 48), R"({"a":[1,)", "stop"}}) {
    for (const bool stream : {false, true}) {
      request_.stream = stream;
      Answer answer(request_, tokenizer_, "id", 0);
      std::vector<std::string> chunks;
      for (const char c : text) chunks.push_back(answer.generated(0, {{}, "", {{std::string(1, c), false}}}));
      chunks.push_back(answer.finished(0, FinishReason::stop, "", {}));
      std::string told, ended;
      if (!stream) chunks = {answer.whole()};
      for (const std::string& chunk : chunks) {
        if (chunk.empty()) continue;
        const Json choice = Json::parse(chunk)["choices"][0];
        const Json& part = choice[stream ? "delta" : "message"];
        for (const Json& each : part.value("tool_calls", Json::array())) {
          EXPECT_EQ(each["function"].contains("name"), told.empty());
          told += each["function"]["arguments"].get<std::string>();
        }
        if (choice["finish_reason"].is_string()) ended = choice["finish_reason"];
      }
      EXPECT_EQ(told, arguments) << stream;
      EXPECT_EQ(ended, reason) << stream;
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::openai
