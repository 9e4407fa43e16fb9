#include "runtime/serve/reasoning.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/serve/answer_parts.h"
#include "tests/runtime/serve/engine_fixture.h"

// Reasoning is counted, and ends where it has to.
namespace hayloft::runtime::serve {
namespace {

class ReasoningTest : public EngineTest {
 protected:
  ReasoningTest() {
    request_.echo = false;
    request_.logprobs = -1;
    request_.max_tokens = 40;
    form_.thinks = form_.in_thought = true;
  }

  std::shared_ptr<Client> answered(const std::optional<DraftOptions>& drafts = std::nullopt) {
    EngineOptions options = options_;
    options.drafts = drafts;
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options);
    auto client = std::make_shared<Client>();
    ask(engine, request_, client);
    return client;
  }
  void reason(int most) {
    request_.reasoning = std::make_shared<const AnswerForm>(form_);
    request_.most_reasoning = most;
  }

  AnswerForm form_;
  const std::vector<std::int32_t> end_ = tokenizer_.encode_continuation("</think>");
};

TEST_F(ReasoningTest, AnAnswerIsMadeToEndItsReasoning) {
  const std::vector<std::int32_t> free = tokens(*answered());
  ASSERT_EQ(free.size(), 40u);
  reason(5);
  std::optional<DraftOptions> drafts = parse_draft("lookup,self:sparq:r=8:k=64");
  drafts->costs = DraftCosts{0.05, 0.05};
  std::vector<std::int32_t> bound[2];
  for (const bool drafted : {false, true}) {
    const std::shared_ptr<Client> client = answered(drafted ? drafts : std::nullopt);
    std::vector<std::int32_t>& answer = bound[drafted ? 1 : 0];
    answer = tokens(*client);
    ASSERT_EQ(answer.size(), 40u);
    EXPECT_TRUE(std::equal(answer.begin(), answer.begin() + 5, free.begin()));
    EXPECT_TRUE(std::equal(end_.begin(), end_.end(), answer.begin() + 5)) << tokenizer_.decode(answer);
    EXPECT_EQ(tokenizer_.decode(answer).find("</think>"), tokenizer_.decode(answer).rfind("</think>"));
    EXPECT_EQ(client->usage.reasoning_tokens, 5 + static_cast<std::int64_t>(end_.size()));
  }
  EXPECT_EQ(bound[0], bound[1]);
}

TEST_F(ReasoningTest, ReasoningIsCountedWithoutABound) {
  const std::vector<std::int32_t> free = tokens(*answered());
  reason(0);
  std::shared_ptr<Client> client = answered();
  EXPECT_EQ(tokens(*client), free);
  EXPECT_EQ(client->usage.reasoning_tokens, 40);
  // The model does not begin to reason of itself.
  form_.in_thought = false;
  reason(5);
  client = answered();
  EXPECT_EQ(tokens(*client), free);
  EXPECT_EQ(client->usage.reasoning_tokens, 0);
}

TEST_F(ReasoningTest, AGrammarHoldsBehindTheBound) {
  grammar::Holding holding;
  holding.behind = "</think>";
  request_.constraint =
      std::make_shared<grammar::Constraint>(grammar::parse_gbnf("root ::= [0-9]{3}"), std::move(holding));
  reason(2);
  const std::string text = tokenizer_.decode(tokens(*answered()));
  const std::size_t at = text.find("</think>");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.size() - at, 8u + 3u) << text;
  EXPECT_EQ(text.find_first_not_of("0123456789", at + 8), std::string::npos) << text;
}

// An answer in channels ends by a text that its client sees, not by one of a head, which nobody sees.
TEST_F(ReasoningTest, AStopStringIsNotFoundInHeads) {
  std::ifstream file(path_ / "tokenizer.json");
  nlohmann::json document = nlohmann::json::parse(file);
  int id = 1001;
  for (const char* content : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}) {
    document["added_tokens"].push_back({{"id", id++}, {"content", content}, {"special", true}});
  }
  const Tokenizer tokenizer = Tokenizer::from_json(document.dump(), "test");
  form_ = {};
  form_.channels = true;
  reason(0);
  request_.runs = true;
  request_.constraint = std::make_shared<grammar::Constraint>(
      grammar::parse_gbnf(R"(root ::= <|channel|> "analysis" <|message|> "hay" <|end|> <|start|> "assistant")"
                          R"( <|channel|> "final" <|message|> "loft")",
                          &tokenizer),
      grammar::Holding{});
  struct Reader : Client {
    void generated(GeneratedToken token) override { told += shown(parts_of(reader.get(), token)); }
    void finished(FinishReason reason, const std::string& rest, const Usage& usage) override {
      told += shown(last_parts(reader.get(), rest));
      Client::finished(reason, rest, usage);
    }
    static std::string shown(const std::vector<AnswerPart>& parts) {
      std::string all;
      for (const AnswerPart& part : parts) all += part.text;
      return all;
    }
    std::unique_ptr<AnswerReader> reader;
    std::string told;
  };
  const std::pair<const char*, const char*> cases[] = {
      {"", "hayloft"},      {"analysis", "hayloft"},     {"assistant", "hayloft"},
      {"final", "hayloft"}, {"message", "hayloft"},      {"ay", "h"},
      {"loft", "hay"},      {"final<|message|>", "hay"}, {"<|end|>", "hay"}};
  for (const auto& [stop, told] : cases) {
    request_.stop = {stop};
    Engine engine({model_, tokenizer, path_}, arena_, contexts_, options_);
    const auto client = std::make_shared<Reader>();
    client->reader = make_answer_reader(form_);
    ask(engine, request_, client);
    EXPECT_EQ(client->told, told) << stop;
    EXPECT_EQ(client->usage.stop.empty(), client->told == "hayloft") << stop;
  }
}

// gpt-oss goes on in its last channel; where it opens its reasoning again, nothing is left of what it may spend.
TEST(ReasoningBound, ChannelsGoOnInTheLastOne) {
  std::ifstream file(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model/tokenizer.json");
  nlohmann::json document = nlohmann::json::parse(file);
  int id = 6000;
  for (const char* content : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}) {
    document["added_tokens"].push_back({{"id", id++}, {"content", content}, {"special", true}});
  }
  const Tokenizer tokenizer = Tokenizer::from_json(document.dump(), "test");
  AnswerForm form;
  form.channels = true;
  const std::vector<std::int32_t> begins = tokenizer.encode_continuation(form.answer_begins());
  EXPECT_EQ(tokenizer.decode(begins, true), "<|end|><|start|>assistant<|channel|>final<|message|>");
  const auto count = std::make_shared<ReasoningCount>(form, tokenizer);
  ReasoningBound bound(count, 3, begins, nullptr);
  // The tokens that are let pass before each of these; all of them, but those that it is made to draw.
  const auto draw = [&](const std::string& text) {
    for (const std::int32_t token : tokenizer.encode_continuation(text)) {
      std::vector<float> logits(static_cast<std::size_t>(tokenizer.vocab_size()));
      bound.apply(logits);
      EXPECT_EQ(std::ranges::count(logits, 0.0F), std::ssize(logits)) << text;
      bound.accept(token);
      count->take(token);
    }
  };
  const auto made_to_begin = [&] {
    for (const std::int32_t token : begins) {
      std::vector<float> logits(static_cast<std::size_t>(tokenizer.vocab_size()));
      bound.apply(logits);
      EXPECT_EQ(std::ranges::count(logits, 0.0F), 1);
      EXPECT_EQ(logits[static_cast<std::size_t>(token)], 0);
      bound.accept(token);
      count->take(token);
    }
  };
  draw("<|channel|>analysis<|message|>");
  EXPECT_TRUE(count->reasons());
  for (const std::int32_t token : {5, 6, 7}) draw(tokenizer.decode({token}));
  made_to_begin();
  EXPECT_EQ(count->tokens(), 3 + 1);  // <|end|> too
  draw("the hay<|end|><|start|>assistant<|channel|>analysis<|message|>");
  made_to_begin();
  draw("the hay");
}

}  // namespace
}  // namespace hayloft::runtime::serve
