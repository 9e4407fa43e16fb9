#include "runtime/eval/papers/sparq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/eval/papers/rouge.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// The SparQ paper's tasks: prompts, lengths and scores as in its code, from files of the shape that the user has.
namespace hayloft::runtime::eval {
namespace {

using nlohmann::json;
using test::refuses;

class SparqTasksTest : public ::testing::Test {
 protected:
  std::unique_ptr<EvalTask> make(const std::string& task, std::int64_t ctx_size = 1 << 16) const {
    return make_sparq_eval(task, files, tokenizer, ctx_size, 7);
  }
  std::string prompt(const EvalSample& sample) const { return tokenizer.decode(sample.prompt); }

  // Articles of two paragraphs of two questions each.
  std::string squad(int articles) const {
    json data = json::array();
    for (int a = 0; a < articles; ++a) {
      json paragraphs = json::array();
      for (int p = 0; p < 2; ++p) {
        json asked = json::array();
        for (int q = 0; q < 2; ++q) {
          asked.push_back({{"question", fmt::format("What is {} {} {}?", a, p, q)},
                           {"answers",
                            {{{"text", fmt::format("the answer {} {} {}", a, p, q)}},
                             {{"text", fmt::format("answer {} {} {}", a, p, q)}}}}});
        }
        paragraphs.push_back({{"context", fmt::format("Paragraph {} {} tells.", a, p)}, {"qas", asked}});
      }
      data.push_back({{"title", fmt::format("Article_{}", a)}, {"paragraphs", paragraphs}});
    }
    return json{{"data", data}}.dump();
  }

  test::TemporaryFolder folder;
  SparqFiles files;
  Tokenizer tokenizer{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model"};
};

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(SparqTasksTest, SquadHasTheParagraphAmongSevenOthersAndOneShotAboutIt) {
  files.squad = folder.write("squad.json", squad(5));
  const auto task = make("sparq_squad");
  EXPECT_EQ(task->samples(), 20);
  std::set<std::string> questions;
  for (int i = 0; i < 20; ++i) {
    const EvalSample sample = task->sample(i);
    const std::string text = prompt(sample);
    EXPECT_EQ(occurrences(text, "Title: Article "), 8u);
    EXPECT_EQ(occurrences(text, "Background: Paragraph"), 8u);
    ASSERT_EQ(occurrences(text, "Question: "), 2u);
    const std::size_t shot = text.find("Question: "), asked = text.rfind("Question: ");
    const std::string own = text.substr(asked + 18, 3);  // "0 1" of What is 0 1 0?
    EXPECT_EQ(text.substr(shot + 18, 3), own) << "about the same paragraph";
    EXPECT_NE(text.substr(shot + 22, 1), text.substr(asked + 22, 1)) << "another question";
    EXPECT_NE(text.find("\nAnswer: answer " + own), std::string::npos) << "the shortest";
    EXPECT_NE(text.find(fmt::format("From what you've just read about Article {}, please answer the following "
                                    "questions.\nQuestion: ",
                                    own[0])),
              std::string::npos);
    EXPECT_TRUE(text.ends_with("?\nAnswer:"));
    EXPECT_EQ(occurrences(text, "Paragraph " + own), 1u);
    const std::size_t longest = tokenizer.encode(sample.expected[0], false).size();
    EXPECT_EQ(sample.answer_tokens, std::min(30, static_cast<int>(longest) + 5));
    questions.insert(text.substr(asked));
  }
  EXPECT_EQ(questions.size(), 20u);
  EXPECT_EQ(prompt(make("sparq_squad")->sample(3)), prompt(task->sample(3))) << "they follow from the seed";
}

TEST_F(SparqTasksTest, AnAnswerCountsByWhatItBeginsWith) {
  EXPECT_TRUE(begins_with_answer(" \"The Normans.\" came", {"Normans"}));
  EXPECT_TRUE(begins_with_answer("an Apple a day", {"apples", "the apple"}));
  EXPECT_TRUE(begins_with_answer("\n1066, in autumn", {"'1066'"}));
  EXPECT_FALSE(begins_with_answer("It was the Normans", {"Normans"}));
  EXPECT_FALSE(begins_with_answer("", {"x"}));
  EXPECT_FALSE(begins_with_answer("anything", {"...", ""})) << "nothing is left of the reference";
  files.squad = folder.write("squad.json", squad(4));
  const auto task = make("sparq_squad");
  EXPECT_TRUE(task->ended("\n Paris\nQuestion"));
  EXPECT_FALSE(task->ended("\n Par"));
}

TEST_F(SparqTasksTest, TriviaQaAndSummariesTakeDocumentsOfTheirLength) {
  const auto words = [](std::size_t characters) {
    std::string text;
    while (text.size() < characters) text += "hay ";
    return text.substr(0, characters);
  };
  const auto asked = [&](const char* question, const json& documents) {
    return json{{"question", question},
                {"answer", {{"aliases", {"Hay", "Dried grass"}}}},
                {"search_results", {{"search_context", documents}}}}
               .dump() +
           "\n";
  };
  files.triviaqa = folder.write(
      "trivia.jsonl", asked("Short?", {words(3999)}) + asked("What?", {words(3000), words(5000), words(9000)}) + "\n");
  const auto trivia = make("sparq_triviaqa");
  ASSERT_EQ(trivia->samples(), 1);
  EXPECT_TRUE(prompt(trivia->sample(0)).ends_with("hay \nQuestion: What?\nAnswer:"));
  EXPECT_EQ(trivia->sample(0).expected, (std::vector<std::string>{"Hay", "Dried grass"}));

  const auto article = [&](std::size_t characters) {
    return json{{"article", words(characters)}, {"highlights", "Hay is dry."}}.dump() + "\n";
  };
  files.summaries = folder.write("cnn.jsonl", article(8001) + article(8000) + article(4000));
  const auto summaries = make("sparq_cnn_dailymail");
  ASSERT_EQ(summaries->samples(), 2);
  const EvalSample sample = summaries->sample(0);
  const std::string text = prompt(sample);
  EXPECT_TRUE(text.starts_with("Article: hay") || text.find("Article: hay") < 16) << text.substr(0, 40);
  EXPECT_TRUE(text.ends_with("\nSummary:"));
  EXPECT_EQ(sample.answer_tokens, static_cast<int>(tokenizer.encode("Hay is dry.", false).size()));
  EXPECT_DOUBLE_EQ(summaries->score("dry hay is", sample), 2 * (2 / 3.0) * (2 / 3.0) / (2 / 3.0 + 2 / 3.0));
}

// By the Python package rouge_score 0.1.2, without a stemmer.
TEST(RougeL, IsThatOfRougeScore) {
  EXPECT_DOUBLE_EQ(rouge_l("The ship sailed at dawn, and the captain slept.", "At dawn the captain's ship sailed."),
                   0.5);
  EXPECT_DOUBLE_EQ(rouge_l("one two three", "one two three"), 1);
  EXPECT_DOUBLE_EQ(rouge_l("a b", "c d"), 0);
  EXPECT_DOUBLE_EQ(rouge_l("Prices rose 3.5% in May\nJobs fell", "In May, prices rose by 3.5 % while jobs grew"),
                   0.5555555555555556);
  EXPECT_DOUBLE_EQ(rouge_l("é naïve", "naïve é"), 1);
  EXPECT_DOUBLE_EQ(rouge_l("", "x"), 0);
}

TEST_F(SparqTasksTest, BitsAndCopyingTakeSixThousandCharacters) {
  std::string text;
  for (int i = 0; i < 6000; ++i) text += fmt::format("word{}{}", i, i % 9 == 8 ? "\n" : " ");
  files.text = text;
  const auto bpc = make("sparq_bpc"), copying = make("sparq_repetition");
  EXPECT_EQ(bpc->measure(), Measure::bits);
  EXPECT_EQ(copying->measure(), Measure::characters);
  EXPECT_GT(bpc->samples(), 20);
  for (int i = 0; i < 5; ++i) {
    const EvalSample sample = bpc->sample(i);
    const std::string before = prompt(sample), after = sample.expected[0];
    EXPECT_NE(text.find(before + after), std::string::npos) << "as the text goes on";
    EXPECT_GE(before.size(), 6000u);
    EXPECT_LT(before.size(), 6020u);
    EXPECT_GE(after.size(), 400u);
    EXPECT_LT(after.size(), 420u);
    EXPECT_EQ(sample.forced, tokenizer.encode(after, false));
    // Every token as likely as one of two: a bit each.
    EXPECT_DOUBLE_EQ(bpc->score_of_loss(std::log(2.0), sample),
                     static_cast<double>(sample.forced.size()) / static_cast<double>(after.size()));

    const EvalSample copied = copying->sample(i);
    const std::string all = prompt(copied);
    EXPECT_EQ(copied.answer_tokens,
              std::min(128, static_cast<int>(tokenizer.encode(copied.expected[0], false).size())));
    const std::string passage = all.substr(all.size() - 120);
    const std::size_t at = all.find(passage);
    ASSERT_LT(at, all.size() - 120) << "it stands in the context";
    EXPECT_EQ(all.compare(at + 120, copied.expected[0].size(), copied.expected[0]), 0);
    EXPECT_EQ(copying->score(copied.expected[0].substr(0, 50) + "#", copied),
              static_cast<double>(copied.expected[0].find_first_not_of(" \n") == 0 ? 50 : 49));
  }
}

TEST_F(SparqTasksTest, WhatDoesNotFitOrIsNoSuchFileIsSaid) {
  files.squad = folder.write("squad.json", squad(4));
  EXPECT_TRUE(refuses([&] { make("sparq_squad", 64)->sample(0); }, {"sparq_squad", "0 of 16", "--ctx-size 64"}));
  files.squad = folder.write("few.json", squad(2));
  EXPECT_TRUE(refuses([&] { make("sparq_squad"); }, {"--squad", "few.json", "4 paragraphs"}));
  files.squad = folder.write("bad.json", R"({"data": [{"paragraphs": 7}]})");
  EXPECT_TRUE(refuses([&] { make("sparq_squad"); }, {"--squad", "bad.json"}));
  files.triviaqa = folder.write("bad.jsonl", "{\"question\": \"What?\"}\n");
  EXPECT_TRUE(refuses([&] { make("sparq_triviaqa"); }, {"--triviaqa", "bad.jsonl, line 1", "answer"}));
  files.summaries = folder.write("none.jsonl", "{\"article\": \"a\", \"highlights\": \"b\"}\n[]\n");
  EXPECT_TRUE(refuses([&] { make("sparq_cnn_dailymail"); }, {"--cnn-dailymail", "none.jsonl, line 2"}));
  files.text = "too short";
  EXPECT_TRUE(refuses([&] { make("sparq_bpc"); }, {"--text"}));
  EXPECT_FALSE(has_input("sparq_squad", {}));
}

}  // namespace
}  // namespace hayloft::runtime::eval
