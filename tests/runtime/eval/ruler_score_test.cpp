#include "runtime/eval/ruler/score.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/eval/ruler/prepared.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Tests how answers to RULER's tasks are scored, and samples that its scripts prepared.
namespace hayloft::runtime::eval {
namespace {

using test::refuses;

TEST(RulerScore, AReferenceCountsWhereverItStandsInEitherCase) {
  EXPECT_EQ(ruler_score("It is 123 and 456.", {"123", "456", "789", "12"}, Credit::all), 0.75);
  EXPECT_EQ(ruler_score("the DENVER Broncos won", {"Denver Broncos"}, Credit::all), 1);
  EXPECT_EQ(ruler_score("\xc3\x89TOILE", {"\xc3\xa9toile"}, Credit::all), 1);
  EXPECT_EQ(ruler_score("one", {"one", "two"}, Credit::any), 1);
  EXPECT_EQ(ruler_score("three", {"one", "two"}, Credit::any), 0);
  EXPECT_EQ(ruler_score("", {"one"}, Credit::all), 0);
  EXPECT_EQ(ruler_score("cut \xc3", {"cut"}, Credit::all), 1);
}

TEST(RulerScore, AnAnswerIsStrippedAndItsControlCharactersAreNewlines) {
  EXPECT_EQ(cleaned_answer("  a\x01"
                           "b\tc \n"),
            "a\nb\nc");
  EXPECT_EQ(cleaned_answer(" \n "), "");
}

class PreparedTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder;
  static constexpr const char* sample =
      R"({"index": 77, "input": "Some text.", "outputs": ["1", "2"], "length": 4090, "answer_prefix": " The answer is"})";
};

TEST_F(PreparedTest, FilesOfRulersScriptsAreReadAsTheyAre) {
  std::filesystem::create_directory(folder / "vt");
  const auto file = folder.write("vt/validation.jsonl", fmt::format("{}\n\n{}\n", sample, sample));
  const PreparedSamples prepared = read_prepared_samples(file);
  EXPECT_EQ(prepared.task, "vt");
  EXPECT_EQ(prepared.answer_tokens, 30);
  EXPECT_EQ(prepared.ctx_size, 4096);
  ASSERT_EQ(prepared.samples.size(), 2u);
  EXPECT_EQ(prepared.samples[1].input, "Some text.");
  EXPECT_EQ(prepared.samples[1].answer_prefix, " The answer is");
  EXPECT_EQ(prepared.samples[1].outputs, (std::vector<std::string>{"1", "2"}));
  const PreparedSamples other = read_prepared_samples(folder.write("my_qa.jsonl", sample));
  EXPECT_EQ(other.task, "my_qa");
  EXPECT_EQ(other.credit, Credit::any);
}

TEST_F(PreparedTest, ADamagedFileIsRefusedWithItsLine) {
  const auto read = [&](const std::string& text) {
    return [&, text] { read_prepared_samples(folder.write("x.jsonl", text)); };
  };
  std::string cut = sample;
  cut += "\n{\"input\"";
  EXPECT_TRUE(refuses(read(cut), {"x.jsonl, line 2", "JSON"}));
  EXPECT_TRUE(refuses(read("[]"), {"line 1"}));
  EXPECT_TRUE(refuses(read(R"({"input":"a","length":5})"), {"line 1", "outputs"}));
  EXPECT_TRUE(refuses(read(R"({"input":"a","length":5,"outputs":[]})"), {"outputs"}));
  EXPECT_TRUE(refuses(read(R"({"input":"a","length":5,"outputs":[3]})"), {"outputs"}));
  EXPECT_TRUE(refuses(read(R"({"input":"a","length":5,"outputs":["3"," "]})"), {"line 1", "outputs", "blank"}));
  EXPECT_TRUE(refuses(read(R"({"outputs":["3"],"length":5})"), {"input"}));
  EXPECT_TRUE(refuses(read(R"({"input":"a","length":0,"outputs":["3"]})"), {"length"}));
  EXPECT_TRUE(refuses(read(""), {"no sample"}));
  EXPECT_TRUE(refuses([&] { read_prepared_samples(folder / "none.jsonl"); }, {"none.jsonl"}));
  EXPECT_TRUE(refuses([&] { read_prepared_samples(folder.path()); }, {"folder"}));
}

}  // namespace
}  // namespace hayloft::runtime::eval
