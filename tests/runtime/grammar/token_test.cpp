#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "offload/error.h"
#include "runtime/grammar/constraint.h"

// Tokens in grammars: <TEXT>, <[ID]> and others than these.
namespace hayloft::runtime::grammar {
namespace {

class TokensOfGrammars : public ::testing::Test {
 protected:
  static constexpr std::int32_t think = 6000, no_more = 6001, end = 6002;

  TokensOfGrammars() : tokenizer_(tokenizer()), vocabulary_(tokenizer_) {}

  static Tokenizer tokenizer() {
    std::ifstream file(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model/tokenizer.json");
    nlohmann::json document = nlohmann::json::parse(file);
    std::int32_t id = think;
    for (const char* content : {"<think>", "</think>", "<|im_end|>"}) {
      document["added_tokens"].push_back({{"id", id++}, {"content", content}, {"special", true}});
    }
    return Tokenizer::from_json(document.dump(), "test");
  }

  std::int32_t token_of(const std::string& text) const {
    const std::vector<std::int32_t> tokens = tokenizer_.encode(text, false);
    EXPECT_EQ(tokens.size(), 1u) << text;
    return tokens.front();
  }

  // The tokens that may follow these, by a grammar.
  std::set<std::int32_t> behind(const std::string& grammar, const std::vector<std::int32_t>& tokens) const {
    const auto constraint = std::make_shared<Constraint>(parse_gbnf(grammar, &tokenizer_), Holding());
    const std::unique_ptr<TokenFilter> filter = constraint->begin(tokenizer_, vocabulary_, {end});
    std::vector<float> logits(static_cast<std::size_t>(tokenizer_.vocab_size()));
    for (const std::int32_t token : tokens) {
      filter->apply(logits);
      EXPECT_FALSE(std::isinf(logits[static_cast<std::size_t>(token)])) << grammar << " " << token;
      filter->accept(token);
      std::ranges::fill(logits, 0.0F);
    }
    filter->apply(logits);
    std::set<std::int32_t> open;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (!std::isinf(logits[i])) open.insert(static_cast<std::int32_t>(i));
    }
    return open;
  }

  std::string refusal(const std::string& grammar, bool known = true) const {
    try {
      parse_gbnf(grammar, known ? &tokenizer_ : nullptr);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  using Open = std::set<std::int32_t>;
  Tokenizer tokenizer_;
  Vocabulary vocabulary_;
};

TEST_F(TokensOfGrammars, ATokenIsMatchedByItsTextOrItsId) {
  const std::int32_t a = token_of("a");
  for (const std::string& grammar :
       {std::string("root ::= <think> \"a\""), "root ::= <[6000]> <[" + std::to_string(a) + "]>"}) {
    EXPECT_EQ(behind(grammar, {}), Open{think}) << grammar;
    EXPECT_EQ(behind(grammar, {think}), Open{a}) << grammar;
    EXPECT_EQ(behind(grammar, {think, a}), Open{end}) << grammar;
  }
  // Its text in quotes is a text, of any tokens but this one.
  EXPECT_FALSE(behind("root ::= \"<think>\"", {}).contains(think));
  EXPECT_TRUE(behind("root ::= \"<think>\"", {}).contains(token_of("<")));
}

TEST_F(TokensOfGrammars, AnyOtherTokenMayBeMeant) {
  const std::int32_t a = token_of("a");
  const std::string grammar = "root ::= <think> !</think>* </think> \"a\"+";
  const Open inside = behind(grammar, {think, a});
  EXPECT_TRUE(inside.contains(a) && inside.contains(think) && inside.contains(no_more));
  EXPECT_FALSE(inside.contains(end)) << "an answer does not end before its grammar has";
  EXPECT_GE(inside.size() + 1, static_cast<std::size_t>(vocabulary_.size()));
  EXPECT_FALSE(behind("root ::= !</think> </think>", {}).contains(no_more));
  EXPECT_FALSE(behind(grammar, {think, a, no_more}).contains(no_more));
  EXPECT_TRUE(behind(grammar, {think, no_more}).contains(a));
}

TEST_F(TokensOfGrammars, ATokenMayBeReadAsItselfAndAsItsText) {
  const std::int32_t a = token_of("a"), b = token_of("b"), c = token_of("c");
  const std::string grammar = "root ::= \"a\" \"b\" | <[" + std::to_string(a) + "]> \"c\"";
  EXPECT_EQ(behind(grammar, {a}), (Open{b, c}));
  EXPECT_EQ(behind(grammar, {a, c}), Open{end});
}

TEST_F(TokensOfGrammars, TheEndOfAnAnswerMayBeTheLastToken) {
  EXPECT_EQ(behind("root ::= <think> <|im_end|>", {think}), Open{end});
  EXPECT_EQ(behind("root ::= <think> <|im_end|> \"a\" | \"b\"", {think}), Open{});
}

TEST_F(TokensOfGrammars, WhatIsNoTokenIsRefused) {
  EXPECT_NE(refusal("root ::= <thinking>").find("<thinking> is not one token"), std::string::npos);
  for (const char* id : {"<[6003]>", "<[-1]>", "<[a]>", "<[5>", "<[5]a>", "<[99999999999]>"}) {
    EXPECT_NE(refusal(std::string("root ::= ") + id).find("is no token from 0 to 6002"), std::string::npos) << id;
  }
  EXPECT_NE(refusal("root ::= !\"a\"").find("a token is wanted behind"), std::string::npos);
  EXPECT_NE(refusal("root ::= <think\nx ::= \"a>\"").find("a token ends with"), std::string::npos);
  EXPECT_NE(refusal("root ::= <think>", false).find("tokenizer"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime::grammar
