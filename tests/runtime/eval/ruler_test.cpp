#include "runtime/eval/ruler/ruler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// RULER's tasks: what they hide, how long they are.
namespace hayloft::runtime::eval {
namespace {

using test::refuses;

std::int64_t occurrences_of(const std::string& text, const std::string& part) {
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

class RulerTest : public ::testing::Test {
 protected:
  RulerSource source(std::string_view task, std::int64_t ctx_size = 4096) const {
    return {task, options, tokenizer, ctx_size};
  }
  // Tokens that a model reads and may write.
  std::int64_t length(const RulerSample& sample, std::string_view task) const {
    return static_cast<std::int64_t>(tokenizer.encode_prompt(sample.input + sample.answer_prefix).size()) +
           find_ruler_task(task)->answer_tokens;
  }

  // Two articles of three paragraphs each, a question to each paragraph, one of them without an answer.
  void write_squad() {
    std::string articles;
    for (int article = 0; article < 2; ++article) {
      std::string paragraphs;
      for (int i = 0; i < 3; ++i) {
        const std::string name = fmt::format("{}-{}", article, i);
        paragraphs += fmt::format(
            R"({}{{"context":"Paragraph {} tells of colour.","qas":[{{"question":"Which colour has {}?","id":"x",)"
            R"("is_impossible":{},"answers":[{{"text":"Red","answer_start":0}},{{"text":"Red","answer_start":3}}]}}]}})",
            i > 0 ? "," : "", name, name, article == 0 && i == 1 ? "true" : "false");
      }
      articles += fmt::format(R"({}{{"title":"t","paragraphs":[{}]}})", article > 0 ? "," : "", paragraphs);
    }
    options.squad = folder.write("squad.json", fmt::format(R"({{"version":"v2.0","data":[{}]}})", articles));
  }

  test::TemporaryFolder folder;
  Tokenizer tokenizer{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model"};
  RulerOptions options;
};

std::vector<std::string> generated_tasks() {
  std::vector<std::string> names;
  for (const RulerTask& task : ruler_tasks()) {
    if (task.name.substr(0, 2) != "qa") names.emplace_back(task.name);
  }
  return names;
}

TEST_F(RulerTest, ThereAreThirteenTasks) {
  EXPECT_EQ(ruler_tasks().size(), 13u);
  EXPECT_EQ(find_ruler_task("vt")->answer_tokens, 30);
  EXPECT_EQ(find_ruler_task("cwe")->answer_tokens, 120);
  EXPECT_EQ(find_ruler_task("fwe")->answer_tokens, 50);
  EXPECT_EQ(find_ruler_task("qa_2")->credit, Credit::any);
  EXPECT_EQ(find_ruler_task("niah"), nullptr);
}

TEST_F(RulerTest, SamplesFillTheContextAndNeverExceedIt) {
  for (const std::string& task : generated_tasks()) {
    for (const std::int64_t ctx_size : {2048, 4096, 5000}) {
      RulerSource samples = source(task, ctx_size);
      for (int i = 0; i < 4; ++i) {
        const RulerSample sample = samples.sample(i);
        EXPECT_EQ(sample.length, length(sample, task)) << task;
        EXPECT_LE(sample.length, ctx_size) << task << " " << i;
        // A sample may have been cut once or twice: 500 words of the text haystack at most each time, 25 lines of some
        // 30 tokens in the others.
        EXPECT_GE(sample.length, ctx_size - (i == 0 ? 150 : 2000)) << task << " " << i;
      }
    }
  }
}

TEST_F(RulerTest, TheSizeIsTheLargestThatFits) {
  // One more line of noise, which is 25 tokens or so, would not have fitted.
  const RulerSample sample = source("niah_single_1").sample(0);
  const auto line = static_cast<std::int64_t>(tokenizer.encode("\n" + std::string(ruler_noise)).size());
  EXPECT_GT(sample.length + line, 4096);
  // The text haystack takes words: a word is a token here, or a few.
  EXPECT_GT(source("niah_single_2").sample(0).length, 4096 - 10);
}

TEST_F(RulerTest, EverythingFollowsFromTheSeedTheLengthAndTheNumber) {
  for (const std::string& task : generated_tasks()) {
    RulerSource samples = source(task, 2048);
    const RulerSample second = samples.sample(1);
    EXPECT_NE(samples.sample(0).outputs, second.outputs) << task;
    const RulerSample again = source(task, 2048).sample(1);  // without asking for the first
    EXPECT_EQ(again.input, second.input) << task;
    EXPECT_EQ(again.outputs, second.outputs) << task;
    options.seed = 43;
    EXPECT_NE(source(task, 2048).sample(1).outputs, second.outputs) << task;
    options.seed = 42;
  }
}

TEST_F(RulerTest, EveryAnswerStandsInTheTextAsOftenAsItsTaskSays) {
  const std::map<std::string, std::size_t> answers{{"niah_multivalue", 4}, {"niah_multiquery", 4}};
  for (const std::string& task : generated_tasks()) {
    if (task.rfind("niah", 0) != 0) continue;
    const RulerSample sample = source(task).sample(3);
    const auto expected = answers.find(task);
    ASSERT_EQ(sample.outputs.size(), expected == answers.end() ? 1u : expected->second) << task;
    for (const std::string& output : sample.outputs) EXPECT_EQ(occurrences_of(sample.input, output), 1) << task;
    EXPECT_EQ(std::set<std::string>(sample.outputs.begin(), sample.outputs.end()).size(), sample.outputs.size());
  }
}

TEST_F(RulerTest, NeedlesAreHiddenAsOftenAsTheirTaskSays) {
  const std::map<std::string, std::int64_t> needles{{"niah_single_1", 1},   {"niah_single_2", 1},
                                                    {"niah_single_3", 1},   {"niah_multikey_1", 4},
                                                    {"niah_multivalue", 4}, {"niah_multiquery", 4}};
  for (const auto& [task, expected] : needles) {
    const RulerSample sample = source(task).sample(0);
    const std::int64_t hidden = occurrences_of(sample.input, "The special magic number for ") +
                                occurrences_of(sample.input, "The special magic uuid for ");
    EXPECT_EQ(hidden, expected) << task;
  }
  for (const char* task : {"niah_multikey_2", "niah_multikey_3"}) {
    const RulerSample sample = source(task).sample(0);
    const std::string kind = task[14] == '2' ? "number" : "uuid";
    // All but the first and the last line is a needle.
    EXPECT_EQ(occurrences_of(sample.input, "The special magic " + kind + " for "),
              occurrences_of(sample.input, "\n") - 1)
        << task;
  }
}

TEST_F(RulerTest, NumbersHaveAsManyDigitsAsAskedForAndUuidsTheirForm) {
  EXPECT_EQ(source("niah_single_2").sample(0).outputs[0].size(), 7u);
  const std::string uuid = source("niah_single_3").sample(0).outputs[0];
  EXPECT_EQ(uuid.size(), 36u);
  EXPECT_EQ(uuid[14], '4');
  options.digits = 6;
  EXPECT_EQ(source("niah_single_2").sample(0).outputs[0].size(), 6u);
  options.digits = 19;
  EXPECT_TRUE(refuses([&] { source("niah_single_2"); }, {"--digits 19", "18"}));
}

TEST_F(RulerTest, NeedlesLieAllOverTheText) {
  RulerSource samples = source("niah_single_2", 2048);
  int early = 0, late = 0;
  for (int i = 0; i < 40; ++i) {
    const RulerSample sample = samples.sample(i);
    const auto at =
        static_cast<double>(sample.input.find("The special magic number")) / static_cast<double>(sample.input.size());
    early += at < 0.25;
    late += at > 0.75;
  }
  // Among 40, 10 are expected in either quarter; 2 or fewer has a chance below one in a thousand.
  EXPECT_GT(early, 2);
  EXPECT_GT(late, 2);
}

TEST_F(RulerTest, AVariablesChainStandsInItsOrder) {
  const RulerSample sample = source("vt").sample(2);
  ASSERT_EQ(sample.outputs.size(), 5u);
  std::size_t last = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(sample.outputs[i].size(), 5u);
    const std::size_t at = sample.input.find("VAR " + sample.outputs[i] + " = ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(at, last);
    last = at;
    if (i > 0) {
      EXPECT_NE(sample.input.find("VAR " + sample.outputs[i] + " = VAR " + sample.outputs[i - 1]), std::string::npos);
    }
  }
  EXPECT_EQ(occurrences_of(sample.input, "VAR "), 2 * (5 + 4));  // the example has a chain of its own
  EXPECT_EQ(occurrences_of(sample.input, "Question: "), 2);
}

// Returns how often each word stands in the numbered list behind the example.
std::map<std::string, int> list_counts(const std::string& input) {
  std::map<std::string, int> counts;
  const std::vector<std::string> words = words_of(input.substr(input.rfind("Below is")));
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool number = words[i - 1].back() == '.' && std::isdigit(static_cast<unsigned char>(words[i - 1][0])) != 0;
    if (number) ++counts[words[i]];
  }
  return counts;
}

TEST_F(RulerTest, TenCommonWordsOccurThirtyTimesAndAllOthersThree) {
  for (const std::int64_t ctx_size : {2048, 16384}) {
    const RulerSample sample = source("cwe", ctx_size).sample(1);
    const std::map<std::string, int> counts = list_counts(sample.input);
    EXPECT_EQ(sample.outputs.size(), 10u);
    for (const auto& [word, times] : counts) {
      const bool common = std::count(sample.outputs.begin(), sample.outputs.end(), word) > 0;
      const int expected = ctx_size < 4096 ? (common ? 6 : 1) : (common ? 30 : 3);
      EXPECT_EQ(times, expected) << word;
    }
    EXPECT_GT(counts.size(), 100u);
  }
}

TEST_F(RulerTest, FrequentWordsFollowAZetaDistribution) {
  const RulerSample sample = source("fwe", 8192).sample(0);
  std::map<std::string, int> counts;
  for (const std::string& word : words_of(sample.input.substr(0, sample.input.find("\nQuestion")))) ++counts[word];
  ASSERT_EQ(sample.outputs.size(), 3u);
  const double second = counts[sample.outputs[0]];
  // Counts are rounded down: by less than one each.
  EXPECT_NEAR(counts["..."], 4 * second, 4);
  EXPECT_NEAR(counts[sample.outputs[1]], second * 4 / 9, 1);
  EXPECT_NEAR(counts[sample.outputs[2]], second * 4 / 16, 1);
  for (const auto& [word, times] : counts) {
    const bool asked = std::count(sample.outputs.begin(), sample.outputs.end(), word) > 0;
    if (!asked && word.size() == 6) {
      EXPECT_LT(times, counts[sample.outputs[2]]) << word;
    }
  }
}

TEST_F(RulerTest, AQuestionHasItsParagraphAmongOthersOfItsArticleFirst) {
  write_squad();
  RulerSource samples = source("qa_1", 2048);
  EXPECT_EQ(samples.samples(), 5);  // the sixth has no answer
  const RulerSample sample = samples.sample(1);
  EXPECT_EQ(sample.outputs, std::vector<std::string>{"Red"});  // once, though the file has it twice
  EXPECT_NE(sample.input.find("Which colour has 0-2?"), std::string::npos);
  EXPECT_LE(sample.length, 2048);
  // Six short paragraphs do not fill 2,048 tokens: they come again.
  EXPECT_GT(occurrences_of(sample.input, "Document "), 50);
  EXPECT_GE(occurrences_of(sample.input, "Paragraph 0-2 tells"), 1);
}

TEST_F(RulerTest, HotpotQuestionsKeepAllTheirDocuments) {
  options.hotpotqa = folder.write(
      "hotpot.json",
      R"([{"question":"Who?","answer":"Ann","context":[["A",["Ann sang. ","She left."]],["B",["Bob sang."]]]},
          {"question":"What?","answer":"yes","context":[["C",["Cy sang."]],["B",["Bob sang."]]]}])");
  RulerSource samples = source("qa_2", 400);
  const RulerSample sample = samples.sample(0);
  EXPECT_NE(sample.input.find("A\nAnn sang. She left."), std::string::npos);
  EXPECT_NE(sample.input.find("B\nBob sang."), std::string::npos);
  EXPECT_EQ(sample.outputs, std::vector<std::string>{"Ann"});
}

TEST_F(RulerTest, RealQuestionsHaveTheirAnswersInTheText) {
  const char* inputs = std::getenv("HAYLOFT_TEST_DATA");
  if (!inputs) GTEST_SKIP() << "HAYLOFT_TEST_DATA is not set";
  options.squad = std::filesystem::path(inputs) / "ruler/xquad.en.json";
  RulerSource samples = source("qa_1");
  EXPECT_EQ(samples.samples(), 1190);
  for (int i = 0; i < 20; ++i) {
    const RulerSample sample = samples.sample(i);
    EXPECT_LE(sample.length, 4096);
    for (const std::string& output : sample.outputs) EXPECT_GE(occurrences_of(sample.input, output), 1) << output;
  }
}

TEST_F(RulerTest, TheChatTemplateCountsAndStandsAroundThePrompt) {
  options.chat = ChatTemplate::named("llama-3");
  const RulerSample sample = source("niah_single_2", 2048).sample(0);
  EXPECT_EQ(sample.input.rfind("<|begin_of_text|>", 0), 0u);
  EXPECT_NE(sample.input.find("assistant<|end_header_id|>\n\n"), std::string::npos);
  EXPECT_LE(sample.length, 2048);
  EXPECT_EQ(ChatTemplate::named("Q: {task}\\nA:").text("why"), "Q: why\nA:");
  EXPECT_TRUE(refuses([] { ChatTemplate::named("llama-9"); }, {"--chat-template llama-9", "{task}"}));
}

TEST_F(RulerTest, WhatCannotBeMadeIsRefused) {
  EXPECT_TRUE(refuses([&] { source("niah_single_4"); }, {"niah_single_4"}));
  EXPECT_TRUE(refuses([&] { source("vt", 300).sample(0); }, {"--ctx-size 300", "vt", "tokens"}));
  EXPECT_TRUE(refuses([&] { source("qa_1"); }, {"qa_1", "--squad"}));
  EXPECT_TRUE(refuses([&] { source("qa_2"); }, {"qa_2", "--hotpotqa"}));
  options.squad = folder.write("bad.json", "{\"data\":[{}]}");
  EXPECT_TRUE(refuses([&] { source("qa_1"); }, {"--squad", "bad.json", "paragraphs"}));
  options.squad = folder.write("bad.json", "{\"data\":[]}");
  EXPECT_TRUE(refuses([&] { source("qa_1"); }, {"no question"}));
  options.squad = folder.write("bad.json", R"({"data":[{"paragraphs":[{"context":"c","qas":[{"question":"Who?",)"
                                           R"("answers":[{"text":"Ann"},{"text":" "}]}]}]}]})");
  EXPECT_TRUE(refuses([&] { source("qa_1"); }, {"bad.json", "Who?", "blank"}));
  options.squad = folder.write("bad.json", "not json");
  EXPECT_TRUE(refuses([&] { source("qa_1"); }, {"--squad", "bad.json"}));
  options.squad = folder / "missing.json";
  EXPECT_TRUE(refuses([&] { source("qa_1"); }, {"missing.json", "cannot be read"}));
}

}  // namespace
}  // namespace hayloft::runtime::eval
