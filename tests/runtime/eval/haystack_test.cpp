#include "runtime/eval/needle/haystack.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "offload/error.h"
#include "runtime/eval/needle/context.h"

namespace hayloft::runtime::eval {
namespace {

TEST(Haystack, SentencesAreCutBehindTheirEndAndWhitespaceIsCollapsed) {
  const auto sentences = split_sentences("  One two.\n\nThree\tfour? \"Five six!\" seven");
  EXPECT_EQ(sentences, (std::vector<std::string>{"One two.", "Three four?", "\"Five six!\"", "seven"}));
}

TEST(Haystack, TextWithoutSentenceEndsIsCutAllTheSame) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "word ";
  for (const std::string& sentence : split_sentences(text)) EXPECT_LE(sentence.size(), 410u);
}

TEST(Haystack, TheGrammarDoesNotRepeatItselfAndIsReproducible) {
  const auto source = make_grammar(7);
  const auto twin = make_grammar(7);
  std::set<std::string> seen;
  constexpr int count = 60000;  // about a million tokens
  int repeated = 0;
  for (int i = 0; i < count; ++i) {
    const std::string sentence = source->next();
    ASSERT_EQ(sentence, twin->next());
    if (!seen.insert(sentence).second) ++repeated;
  }
  // The shortest clause is a name, one of 20 verbs and one of 16 adverbs: a handful of those meet again, nothing longer
  // does.
  EXPECT_LT(repeated, count / 100);
  EXPECT_NE(make_grammar(8)->next(), make_grammar(7)->next());
}

TEST(Haystack, AFolderIsReadInTheOrderOfItsPathsAndRepeated) {
  const auto folder = std::filesystem::temp_directory_path() / "hayloft-haystack-test";
  std::filesystem::create_directories(folder / "b");
  std::ofstream(folder / "a.txt") << "First. Second.";
  std::ofstream(folder / "b" / "c.txt") << "Third.";
  const auto source = make_text(folder);
  for (const char* expected : {"First.", "Second.", "Third.", "First."}) EXPECT_EQ(source->next(), expected);
  std::filesystem::remove_all(folder);
}

TEST(Haystack, AMissingOrEmptyHaystackIsAnErrorThatNamesIt) {
  try {
    make_text("/nowhere/at/all.txt");
    FAIL() << "a missing file was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--haystack /nowhere/at/all.txt"), std::string::npos) << error.what();
  }
}

// Keys are drawn until each needle has one of its own, so that more needles than keys would never be done.
TEST(Haystack, MoreNeedlesThanThereAreKeysAreRefused) {
  std::mt19937_64 random(1);
  EXPECT_EQ(make_needles(3, 6, random).size(), 3u);
  EXPECT_GT(needle_keys(), 400000);
  EXPECT_THROW(make_needles(static_cast<int>(needle_keys()) + 1, 6, random), Error);
}

}  // namespace
}  // namespace hayloft::runtime::eval
