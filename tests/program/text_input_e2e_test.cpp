#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/program/program.h"

// One rule for every text that comes in: UTF-8 without its mark, or a line that says what it is.
namespace hayloft::test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using Arguments = std::vector<std::string>;

const std::string bundled_path = std::string(HAYLOFT_SOURCE_DIR) + "/examples/needle-model/model";

class TextInputTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  Outcome run(const Arguments& arguments, const std::string& input) const {
    return Program(arguments, "", folder_.write("input", input)).wait();
  }
  // What is generated from a text in a file, and from the same on standard input.
  std::string generated(const std::string& text) const {
    const Outcome file =
        run_program({"generate", "-m", bundled_path, "-f", folder_.write("text", text).string(), "-n", "12"});
    const Outcome piped = run({"generate", "-m", bundled_path, "-f", "-", "-n", "12"}, text);
    EXPECT_EQ(file.exit_code, 0) << file.err;
    EXPECT_EQ(piped.out, file.out);
    return file.out;
  }
  std::string saved(const std::string& text) const {
    fs::remove(at("hay.hay"));
    const Outcome made = run_program({"ingest", "-f", folder_.write("text", text).string(), "--save", at("hay.hay")});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return at("hay.hay");
  }

  TemporaryFolder folder_;
};

constexpr const char* hay = "The grass is green. The sky is blue. ";

TEST_F(TextInputTest, AByteOrderMarkIsNoPartOfTheText) {
  EXPECT_EQ(generated("\xEF\xBB\xBF"s + hay), generated(hay));
  const Outcome marked = run_program({"inspect", saved("\xEF\xBB\xBF"s + hay)});
  EXPECT_EQ(marked.out, run_program({"inspect", saved(hay)}).out);
  // Of each of several files.
  const std::string one = folder_.write("one", "\xEF\xBB\xBFThe hay. ").string();
  const std::string two = folder_.write("two", "\xEF\xBB\xBFThe straw. ").string();
  EXPECT_EQ(run_program({"ingest", "-f", one, two, "--save", at("both.hay")}).exit_code, 0);
  const std::string tokens = run_program({"inspect", saved("The hay. The straw. "), "--verify"}).out;
  const std::string both = run_program({"inspect", at("both.hay"), "--verify"}).out;
  const auto digest = [](const std::string& out) { return out.substr(out.find("content_digest")); };
  EXPECT_EQ(digest(both), digest(tokens));
}

TEST_F(TextInputTest, WhatIsNotUtf8IsRefusedByEveryCommand) {
  const std::string context = saved(hay);
  const std::vector<std::pair<std::string, std::string>> bad{
      {"caf\xE9 and hay\n", "not UTF-8: byte 3"},
      {"\xFF\xFEh\0a\0y\0\n\0"s, "is UTF-16"},
      {"\0h\0a\0y\0\n"s, "is UTF-16BE"},
  };
  for (const auto& [bytes, said] : bad) {
    const std::string file = folder_.write("bad", bytes).string();
    const std::string bad_input = at("bad");
    for (const Arguments& arguments :
         {Arguments{"generate", "-m", bundled_path, "-f", file},
          Arguments{"ingest", "-f", file, "--save", at("new.hay")},
          Arguments{"ingest", "-f", file, "--append", context}, Arguments{"ingest", "-f", file, "--update", context},
          Arguments{"eval", "--text", file, "--tasks", "perplexity", "-c", "512"},
          Arguments{"serve", "-m", bundled_path, "--api-key-file", file}}) {
      EXPECT_TRUE(refused_with(run_program(arguments), 1, {file, said})) << arguments.front();
    }
    EXPECT_TRUE(refused_with(run({"generate", "-m", bundled_path, "-f", "-"}, bytes), 1, {"--file -", said}));
    const Outcome asked = run({"ask", context}, bytes);
    EXPECT_EQ(asked.exit_code, 1);
    EXPECT_NE(asked.err.find("standard input, line 1: "), std::string::npos) << asked.err;
    const Outcome needle = run_program({"needle", "-c", "512", "--depths", "1", "--haystack", file});
    EXPECT_EQ(needle.exit_code, 1);
    EXPECT_NE(needle.err.find("--haystack " + file), std::string::npos) << needle.err;
  }
  EXPECT_FALSE(fs::exists(at("new.hay")));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", bundled_path, "-p", "caf\xE9"}), 2, {"--prompt", "UTF-8"}));
  EXPECT_TRUE(refused_with(run_program({"ask", context, "-p", "hay", "-p", "caf\xE9"}), 2, {"--prompt", "byte 3"}));
}

TEST_F(TextInputTest, QuestionsEndInEitherWay) {
  const std::string context = saved(hay);
  const auto answers = [&](const std::string& lines) {
    const Outcome outcome = run({"ask", context, "-n", "8"}, lines);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string usual = answers("The sky is\nThe grass is\n");
  EXPECT_EQ(answers("The sky is\r\nThe grass is\r\n"), usual);
  EXPECT_EQ(answers("\xEF\xBB\xBFThe sky is\r\n\r\nThe grass is\r"), usual);
  EXPECT_EQ(answers("The sky is\n  \nThe grass is\n"), usual);
}

TEST_F(TextInputTest, AQuestionGoesIntoEveryPlaceOfATemplateAndIsWords) {
  const std::string context = saved(hay);
  const auto answer = [&](const std::string& form, const std::string& question, const Arguments& more) {
    Arguments arguments = {"ask", context, "--template", form, "-p", question};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  EXPECT_EQ(answer("{}{}", "The sky is", {"-n", "8"}).out, answer("{}", "The sky isThe sky is", {"-n", "8"}).out);
  EXPECT_TRUE(refused_with(answer("", "The sky is", {}), 2, {"--template", "{}"}));
  // The token that ends the text is drawn unless the text has it already.
  const Arguments end_first = {"-n", "1", "--no-repeat-ngram", "1", "--logit-bias", "0+90", "--logit-bias", "900+80"};
  EXPECT_EQ(answer("{}", "The sky<|end_of_text|> is", end_first).out, "\n");
  EXPECT_EQ(answer("<|end_of_text|>{}", "The sky is", end_first).out, " wood\n");
}

TEST_F(TextInputTest, LineEndsOfADocumentStay) {
  EXPECT_NE(run_program({"inspect", saved("The hay.\r\nThe straw.\r\n"), "--verify"}).out,
            run_program({"inspect", saved("The hay.\nThe straw.\n"), "--verify"}).out);
}

TEST_F(TextInputTest, OfAFolderTheMarksGoAndWhatIsNoTextIsNamed) {
  fs::create_directory(at("src"));
  folder_.write("src/a.txt", "\xEF\xBB\xBFThe hay.\n");
  folder_.write("src/latin.txt", "caf\xE9\n");
  folder_.write("src/\x1b[2Jwide\n.txt", "\xFF\xFEh\0a\0"s);
  const Outcome made = run_program({"ingest", "-f", at("src"), "--save", at("src.hay")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_NE(made.err.find("1 file"), std::string::npos) << made.err;
  EXPECT_NE(made.err.find("2 are no text (\xEF\xBF\xBD[2Jwide .txt, latin.txt)"), std::string::npos) << made.err;
  const std::string tokens = run_program({"inspect", at("src.hay"), "--verify"}).out;
  const std::string plain = run_program({"inspect", saved("=== a.txt ===\nThe hay.\n\n"), "--verify"}).out;
  const auto digest = [](const std::string& out) { return out.substr(out.find("content_digest")); };
  EXPECT_EQ(digest(tokens), digest(plain));
}

// No escape sequence or new line of a name reaches standard error.
TEST_F(TextInputTest, NamesOfFilesAreShownInOneLine) {
  const std::string name = at("\x1b]0;title\x07\nhay.hay");
  const std::string shown = "\xEF\xBF\xBD]0;title\xEF\xBF\xBD hay.hay: ";
  const std::string file = folder_.write("text", hay).string();
  const auto check = [&](const Outcome& outcome) {
    EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("\nhay.hay"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(shown), std::string::npos) << outcome.err;
  };
  check(run_program({"ingest", "-f", file, "--save", name}));
  check(run_program({"ingest", "-f", file, "--save", name}));  // exists
  check(run_program({"ingest", "-f", file, "--append", name}));
  check(run_program({"ingest", "-f", file, "--again", "--append", name}));
  check(run_program({"ingest", "-f", file, "--update", name}));
  check(run_program({"ask", name, "-p", "The sky is", "-n", "2"}));
  check(run_program({"index", name, "--index", "ann"}));
}

TEST_F(TextInputTest, ANameThatIsNotUtf8IsWrittenAsJsonAllTheSame) {
  const std::string name = at("caf\xE9.hay");
  ASSERT_EQ(run_program({"ingest", "-f", folder_.write("text", hay).string(), "--save", name}).exit_code, 0);
  const Outcome outcome = run_program({"inspect", name, "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("caf\xEF\xBF\xBD.hay"), std::string::npos) << outcome.out;
}

TEST_F(TextInputTest, ALineWithoutAnEndIsRefused) {
  const std::string context = saved(hay);
  const Outcome outcome = Program(Arguments{"ask", context}, "exec </dev/zero").wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("standard input, line 1: has more than"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace hayloft::test
