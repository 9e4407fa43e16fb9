#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/eval/eval.h"
#include "tests/support/refusal.h"

// Tasks made of a text: a passage to be copied, the perplexity of what follows.
namespace hayloft::runtime::eval {
namespace {

using test::refuses;

// Runs on a text whose words are all different.
class EvalTextTest : public ::testing::Test {
 protected:
  static std::string counted(int words) {
    std::string text;
    for (int i = 0; i < words; ++i) text += fmt::format("word{} ", i);
    return text;
  }
  Tokenizer tokenizer{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model"};
  std::string source = counted(4000);
  std::shared_ptr<const EvalText> text = read_eval_text(source, tokenizer);
};

TEST_F(EvalTextTest, APassageFromTheMiddleIsToBeCopied) {
  const auto task = make_repetition(text, tokenizer, 2048, 5, 100, 1);
  EXPECT_EQ(task->samples(), 5);
  for (int i = 0; i < 5; ++i) {
    const EvalSample sample = task->sample(i);
    EXPECT_EQ(sample.prompt.size() + 100, 2048u);
    EXPECT_EQ(sample.answer_tokens, 100);
    const std::string prompt = tokenizer.decode(sample.prompt);
    const std::size_t gap = prompt.find("\n\n");
    const std::string passage = prompt.substr(gap + 2);
    const std::size_t at = prompt.find(passage);
    ASSERT_LT(at, gap) << "the passage stands in the text before";
    EXPECT_EQ(prompt.compare(at + passage.size(), sample.expected[0].size(), sample.expected[0]), 0);
    EXPECT_GT(at, gap / 5);
    EXPECT_LT(at + passage.size() + sample.expected[0].size(), gap * 4 / 5);
  }
}

TEST_F(EvalTextTest, ACopyIsScoredByItsCharactersUpToTheFirstDifference) {
  const auto task = make_repetition(text, tokenizer, 2048, 1, 100, 1);
  const EvalSample sample{{}, 0, {}, {"h\xc3\xa9llo w\xc3\xb6rld"}};
  EXPECT_EQ(task->score("h\xc3\xa9llo there", sample), 6);
  EXPECT_EQ(task->score("h\xc3\xa8llo", sample), 1) << "half a character is none";
  EXPECT_EQ(task->score("h\xc3\xa9llo w\xc3\xb6rld and more", sample), 11);
  EXPECT_EQ(task->score("", sample), 0);
}

TEST_F(EvalTextTest, PerplexityIsOfTheTokensThatFollow) {
  const auto task = make_perplexity(text, 1000, 3, 64);
  for (int i = 0; i < 3; ++i) {
    const EvalSample sample = task->sample(i);
    EXPECT_EQ(sample.prompt.size(), 936u);
    EXPECT_EQ(sample.forced.size(), 64u);
    std::vector<std::int32_t> all = sample.prompt;
    all.insert(all.end(), sample.forced.begin(), sample.forced.end());
    EXPECT_NE(source.find(tokenizer.decode(all)), std::string::npos) << "one stretch of the text";
  }
  EXPECT_NE(task->sample(0).prompt, task->sample(1).prompt);
  EXPECT_EQ(make_perplexity(text, 1000, 9, 64)->sample(1).prompt, task->sample(1).prompt)
      << "more samples leave the first ones as they are";
}

TEST_F(EvalTextTest, TextsAndContextsThatAreTooShortAreRefused) {
  EXPECT_TRUE(refuses([&] { make_perplexity(text, 1 << 20, 1, 64); }, {"--text", "1048576"}));
  EXPECT_TRUE(refuses([&] { make_repetition(text, tokenizer, 300, 1, 128, 1); }, {"--ctx-size 300", "repetition"}));
  EXPECT_TRUE(refuses([&] { make_perplexity(text, 64, 1, 64); }, {"--ctx-size 64", "perplexity"}));
}

}  // namespace
}  // namespace hayloft::runtime::eval
