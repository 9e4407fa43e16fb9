#include "runtime/tokenizer/tokenizer.h"
#include "offload/text/utf8.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/tokenizer/small_tokenizer.h"

namespace hayloft::runtime {
namespace {

using test::abc;
using test::added_token;
using test::characters;
using test::json;
using test::Pieces;
using test::pieces;
using test::read;
using test::Tokens;

TEST(Bpe, JoinsThePairOfSmallestRankFirst) {
  EXPECT_EQ(pieces(abc(), "abc"), (Pieces{"abc"}));  // bc, then a+bc
  EXPECT_EQ(pieces(abc(), "abcd"), (Pieces{"abc", "d"}));
  EXPECT_EQ(pieces(abc(), "abdcd"), (Pieces{"ab", "d", "cd"}));
}

TEST(Bpe, JoinsTheLeftmostOfEqualPairs) {
  EXPECT_EQ(pieces(characters({"a"}, {{"a", "a"}}), "aaa"), (Pieces{"aa", "a"}));
  EXPECT_EQ(pieces(characters({"a"}, {{"a", "a"}, {"aa", "a"}}), "aaaa"), (Pieces{"aa", "aa"}));
}

TEST(Bpe, ReadsMergesWrittenAsTextOrAsPairs) {
  json as_text = abc();
  as_text["model"]["merges"] = {"#version: 0.2", "b c", "a b", "ab c", "a bc", "c d"};
  json as_pairs = characters({"a", "b", "c", "d"}, {{"b", "c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}, {"c", "d"}});
  for (const std::string text : {"abcabdcdbcab", "abc", "ddd"})
    EXPECT_EQ(pieces(as_text, text), pieces(as_pairs, text));
}

TEST(Bpe, TakesWholeWordsFromTheVocabularyWhenMergesAreIgnored) {
  json document = abc();
  document["model"]["vocab"]["cab"] = 20;
  EXPECT_EQ(pieces(document, "cab"), (Pieces{"c", "ab"}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(pieces(document, "cab"), (Pieces{"cab"}));
}

TEST(Bpe, DropsWhatIsUnknownUnlessThereIsAnUnknownToken) {
  json document = abc();
  EXPECT_EQ(pieces(document, "axxb"), (Pieces{"ab"}));
  document["model"]["vocab"]["?"] = 30;
  document["model"]["unk_token"] = "?";
  EXPECT_EQ(pieces(document, "axxb"), (Pieces{"a", "?", "?", "b"}));
  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(pieces(document, "axxb"), (Pieces{"a", "?", "b"}));
}

TEST(Bpe, SpellsWhatIsUnknownInByteTokens) {
  json document = abc();
  document["model"]["byte_fallback"] = true;
  document["model"]["vocab"]["<0xC3>"] = 40;
  document["model"]["vocab"]["<0xA9>"] = 41;
  EXPECT_EQ(read(document).encode("a\u00e9b"), (Tokens{0, 40, 41, 1}));
  EXPECT_EQ(read(document).encode("a\u00eab"), (Tokens{6}));  // no token <0xAA>, so the character is dropped
}

// Without a pre-tokenizer the whole text is one word; a method that is quadratic in it would not return.
TEST(Bpe, EncodesMegabytesWithoutAnyWordBoundary) {
  constexpr std::size_t kLength = 1 << 20;
  json doubling = characters({"a"}, {{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  EXPECT_EQ(read(doubling).encode(std::string(kLength, 'a')), Tokens(kLength / 8, 3));
}

TEST(Bpe, EncodesLongTextAsItsParts) {
  // No token spans "d ", so parts are independent however the whole is cut for speed.
  const Tokenizer tokenizer = read(abc());
  const std::string part = "abcabdcdbcabd ";
  const Tokens once = tokenizer.encode(part);
  std::string text;
  Tokens expected;
  for (int i = 0; i < 1000; ++i) {
    text += part;
    expected.insert(expected.end(), once.begin(), once.end());
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  json document = characters({"a", "\uFFFD"}, {});
  const Tokenizer tokenizer = read(document);
  EXPECT_EQ(tokenizer.encode("a\xFF\xFE"), (Tokens{0, 1, 1}));
  EXPECT_EQ(tokenizer.encode("\xE2\x82"
                             "a"),
            (Tokens{1, 0}));                                       // one character cut short
  EXPECT_EQ(tokenizer.encode("\xED\xA0\x80"), (Tokens{1, 1, 1}));  // a surrogate
  EXPECT_EQ(tokenizer.encode("a\xF0\x9F"), (Tokens{0, 1}));
}

TEST(Tokenizer, EncodesNothingToTheTokensOfTheTemplate) {
  json document = abc();
  document["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                                {"special_tokens", {{"<s>", {{"ids", {7, 8}}}}}}};
  EXPECT_EQ(read(document).encode(""), (Tokens{7, 8}));
  EXPECT_EQ(read(document).encode("d"), (Tokens{7, 8, 3}));
  EXPECT_EQ(read(document).encode("d", /*special=*/false), (Tokens{3}));
}

// abc() with "<s>" before and "</s>" behind every text.
json begun_and_ended() {
  json document = abc();
  document["added_tokens"] = {added_token(50, "<s>"), added_token(51, "</s>")};
  const json text = {{"Sequence", {{"id", "A"}}}};
  const auto token = [](const char* name) { return json{{"SpecialToken", {{"id", name}}}}; };
  document["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {token("<s>"), text, token("</s>")}},
                                {"special_tokens", {{"<s>", {{"ids", {50}}}}, {"</s>", {{"ids", {51}}}}}}};
  return document;
}

TEST(Tokenizer, PutsNothingBeforeAPromptThatBeginsWithBos) {
  const Tokenizer tokenizer = read(begun_and_ended());
  EXPECT_EQ(tokenizer.encode_prompt("ab"), (Tokens{50, 6, 51}));
  EXPECT_EQ(tokenizer.encode_prompt("<s>ab"), (Tokens{50, 6, 51}));
  EXPECT_EQ(tokenizer.encode_prompt("<s><s>ab"), (Tokens{50, 50, 6, 51})) << "as written";
  EXPECT_EQ(tokenizer.encode_prompt("a<s>"), (Tokens{50, 0, 50, 51}));
  EXPECT_EQ(tokenizer.encode_prompt(""), (Tokens{50, 51}));
  EXPECT_EQ(read(abc()).encode_prompt("ab"), (Tokens{6}));
}

TEST(Tokenizer, LeavesBosOutOfATextThatGoesOn) {
  const Tokenizer tokenizer = read(begun_and_ended());
  EXPECT_EQ(tokenizer.encode_continuation("<s>ab"), (Tokens{6}));
  EXPECT_EQ(tokenizer.encode_continuation("ab<s>"), (Tokens{6, 50}));
  EXPECT_EQ(tokenizer.encode_continuation(""), Tokens{});
  json document = abc();
  document["added_tokens"] = {added_token(50, "<s>")};
  EXPECT_EQ(read(document).encode_continuation("<s>ab"), (Tokens{50, 6})) << "no BOS that the tokenizer puts";
}

TEST(Tokenizer, KnowsItsTokensByTextAndCountsThemByTheLargestId) {
  json document = abc();
  document["added_tokens"] = {added_token(50, "<end>")};
  const Tokenizer tokenizer = read(document);
  EXPECT_EQ(tokenizer.vocab_size(), 51);
  EXPECT_EQ(tokenizer.token("<end>"), 50);
  EXPECT_EQ(tokenizer.token("ab"), 6);
  EXPECT_EQ(tokenizer.token("ba"), -1);
  EXPECT_EQ(tokenizer.decode({0, 33, -5, 1 << 30, 50}), "a <end>");  // without a decoder tokens are joined by spaces
}

TEST(Tokenizer, EncodesTheSameInEveryThread) {
  const Tokenizer tokenizer(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/tokenizers/llama3");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "the needle " + std::to_string(i) + " is in the hay <|eot_id|>";
  const Tokens expected = tokenizer.encode(text);
  std::vector<Tokens> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(AddedTokens, AreFoundLongestFirstWhereverTheyStand) {
  json document = abc();
  document["added_tokens"] = {added_token(50, "<e>"), added_token(51, "<e><e>"), added_token(52, "<f")};
  EXPECT_EQ(read(document).encode("a<e><e><e>b<f<e"), (Tokens{0, 51, 50, 1, 52}));
}

TEST(AddedTokens, KeepTheIdsOfTheFileEvenWithHoles) {
  json document = abc();
  document["added_tokens"] = {added_token(300, "<e>"), added_token(301, "d")};
  EXPECT_EQ(read(document).encode("a<e>d"), (Tokens{0, 300, 3}));  // the vocabulary has d already
}

TEST(AddedTokens, TakeInWhiteSpaceWhenToldTo) {
  json document = abc();
  document["added_tokens"] = {added_token(50, "<l>", {"lstrip"}), added_token(51, "<r>", {"rstrip"})};
  EXPECT_EQ(read(document).encode("a  <l> <r> \n\u00a0b"), (Tokens{0, 50, 4, 51, 1}));
}

TEST(AddedTokens, AreWordsWhenToldTo) {
  json document = abc();
  document["added_tokens"] = {added_token(50, "ad", {"single_word"})};
  EXPECT_EQ(read(document).encode("ad dad ad"), (Tokens{50, 4, 3, 0, 3, 4, 50}));
  EXPECT_EQ(read(document).encode("ad\u00e9"), (Tokens{0, 3}));
}

TEST(AddedTokens, AreFoundInNormalizedTextAndDecodedAsWritten) {
  json document = abc();
  document["normalizer"] = {{"type", "Lowercase"}};
  document["added_tokens"] = {added_token(50, "Ad", {"normalized"}), added_token(51, "B")};
  const Tokenizer tokenizer = read(document);
  EXPECT_EQ(tokenizer.encode("adADBb"), (Tokens{50, 50, 51, 1}));
  EXPECT_EQ(tokenizer.decode({50}), "Ad");
}

}  // namespace
}  // namespace hayloft::runtime
