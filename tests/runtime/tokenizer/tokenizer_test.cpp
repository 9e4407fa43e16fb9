#include "runtime/tokenizer/tokenizer.h"
#include "offload/utf8.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "runtime/tokenizer/pretokenizer_regex.h"
#include "runtime/tokenizer/unicode.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;
using test::refuses;
using Tokens = std::vector<std::int32_t>;

// A tokenizer over single characters, ids in their order, with `merges` whose results follow.
json characters(const std::vector<std::string>& alphabet,
                const std::vector<std::pair<std::string, std::string>>& merges) {
  json vocab = json::object();
  for (const auto& character : alphabet) vocab[character] = vocab.size();
  json list = json::array();
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = vocab.size();
    list.push_back({left, right});
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

json abc() {
  return characters({"a", "b", "c", "d", " "}, {{"b", "c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}, {"c", "d"}});
}

Tokenizer read(const json& document) {
  return Tokenizer::from_json(document.dump(), "test.json");
}

// The texts of the tokens of `text`.
std::vector<std::string> pieces(const json& document, const std::string& text) {
  const Tokenizer tokenizer = read(document);
  std::vector<std::string> out;
  for (const auto token : tokenizer.encode(text)) out.push_back(tokenizer.decode({token}, /*special=*/true));
  return out;
}
using Pieces = std::vector<std::string>;

// The words that a pre-tokenizer makes of a text: every substring is a token, and words that are tokens stay whole.
Pieces words(const json& pre_tokenizer, const std::string& text) {
  json vocab = json::object();
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (std::size_t size = 1; begin + size <= text.size(); ++size) {
      const std::string word = text.substr(begin, size);
      if (!vocab.contains(word)) vocab[word] = vocab.size();
    }
  }
  const json merge = {text.substr(0, 1), text.substr(1, 1)};  // without any, the file would count as damaged
  return pieces({{"model", {{"vocab", vocab}, {"merges", json::array({merge})}, {"ignore_merges", true}}},
                 {"pre_tokenizer", pre_tokenizer}},
                text);
}

json split(const std::string& pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

json added_token(int id, const std::string& content, const std::vector<std::string>& flags = {}) {
  json token = {{"id", id}, {"content", content}, {"normalized", false}};
  for (const auto& flag : flags) token[flag] = true;
  return token;
}

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

TEST(PreTokenizer, SplitsWithEveryBehavior) {
  EXPECT_EQ(words(split("-", "Isolated"), "a-b--c-"), (Pieces{"a", "-", "b", "-", "-", "c", "-"}));
  EXPECT_EQ(words(split("-", "Removed"), "a-b--c-"), (Pieces{"a", "b", "c"}));
  EXPECT_EQ(words(split("-", "MergedWithPrevious"), "a-b--c-"), (Pieces{"a-", "b-", "-", "c-"}));
  EXPECT_EQ(words(split("-", "MergedWithNext"), "a-b--c-"), (Pieces{"a", "-b", "-", "-c", "-"}));
  EXPECT_EQ(words(split("-", "Contiguous"), "a-b--c-"), (Pieces{"a", "-", "b", "--", "c", "-"}));
  EXPECT_EQ(words(split("[a-c]+", "Removed", /*invert=*/true), "ab-c--"), (Pieces{"ab", "c"}));
}

TEST(PreTokenizer, ReadsBothFormsOfMetaspace) {
  const auto first_piece = [](const json& fields) {
    json document = characters({"a", "\u2581"}, {});
    document["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
    document["pre_tokenizer"].update(fields);
    document["added_tokens"] = {added_token(50, "<e>")};
    return read(document).encode("a<e>a");
  };
  EXPECT_EQ(first_piece({{"add_prefix_space", true}}), (Tokens{1, 0, 50, 1, 0}));
  EXPECT_EQ(first_piece({{"add_prefix_space", false}}), (Tokens{0, 50, 0}));
  EXPECT_EQ(first_piece({{"prepend_scheme", "always"}}), (Tokens{1, 0, 50, 1, 0}));
  EXPECT_EQ(first_piece({{"prepend_scheme", "first"}}), (Tokens{1, 0, 50, 0}));
  EXPECT_EQ(first_piece({{"prepend_scheme", "never"}}), (Tokens{0, 50, 0}));
}

TEST(PreTokenizer, GivesUpOnAPatternThatBacktracksBeyondMeasure) {
  json document = abc();
  document["pre_tokenizer"] = split("^(a+)+(?<!a)$", "Isolated");
  const std::string text = std::string(60, 'a') + "b";
  EXPECT_TRUE(refuses([&] { read(document).encode(text); }, {"test.json", "pre_tokenizer.pattern.Regex", "61 bytes"}));
}

TEST(Regex, ReadsOnigurumaSyntax) {
  const auto translated = [](const char* pattern) { return oniguruma_to_pcre2(pattern, "here"); };
  EXPECT_EQ(translated(R"(\p{L}+| ?[^\r\n]{2,}|(?i:'s)|a\\s)"), R"(\p{L}+| ?[^\r\n]{2,}|(?i:'s)|a\\s)");
  EXPECT_EQ(translated(R"(a{1,3}+b)"), R"((?:a{1,3})+b)");
  EXPECT_EQ(translated(R"(x(?:ab|[c\]])\p{Lu}{2}+)"), R"(x(?:ab|[c\]])(?:\p{Lu}{2})+)");
  EXPECT_EQ(translated(R"((ab){,3}+)"), R"((?:(ab){0,3})+)");
  EXPECT_EQ(translated(R"([^(a|[b,c]\h)]\h)"), R"([^(a|b,c0-9A-Fa-f)][0-9A-Fa-f])");
  EXPECT_EQ(translated(R"([]a[)]]{,})"), R"([\]a)]{,})");
  EXPECT_EQ(translated(R"(\u4E00(?m:.)(?im-x)\p{^Han}\p{Any})"), R"(\x{4E00}(?s:.)(?is-x)\p{^sc:Han}\p{Any})");
}

TEST(Regex, RefusesClassesThatPcre2CannotWrite) {
  const auto translate = [](const char* pattern) { oniguruma_to_pcre2(pattern, "here"); };
  EXPECT_TRUE(refuses([&] { translate("[a-z&&[^b]]"); }, {"here", "&&", "not supported"}));
  EXPECT_TRUE(refuses([&] { translate("[a[^b]]"); }, {"here", "negated class", "not supported"}));
  EXPECT_TRUE(refuses([&] { Regex("(", Regex::Syntax::oniguruma, "here"); }, {"here", "does not compile"}));
}

TEST(Unicode, NormalizesALongRunOfMarks) {
  // Dot below (class 220) sorts before acute (230); a quadratic sort of a million marks would not return.
  constexpr int kPairs = 300'000;
  std::string mixed = "e", sorted = "\u1EB9";  // e with dot below takes the first dot
  for (int i = 0; i < kPairs; ++i) mixed += "\u0301\u0323";
  for (int i = 1; i < kPairs; ++i) sorted += "\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0301";
  EXPECT_TRUE(normalize(mixed, NormalForm::nfc) == sorted);
}

TEST(Unicode, NormalizesToEveryForm) {
  EXPECT_EQ(normalize("e\u0301\uFB01", NormalForm::nfc), "\u00E9\uFB01");
  EXPECT_EQ(normalize("\u00E9\uFB01\uD55C", NormalForm::nfd), "e\u0301\uFB01\u1112\u1161\u11AB");
  EXPECT_EQ(normalize("e\u0301\uFB01", NormalForm::nfkc), "\u00E9fi");
  EXPECT_EQ(normalize("\u00E9\uFB01", NormalForm::nfkd), "e\u0301fi");
  EXPECT_EQ(normalize("plain \u00E9\u00DF", NormalForm::nfc), "plain \u00E9\u00DF");
}

TEST(Utf8Stream, HoldsBackTheBytesOfASplitCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80\xC3"), "\U0001F600");
  EXPECT_EQ(stream.push("\xA9"), "\u00E9");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatCanNoLongerBecomeValid) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("a\xFF"), "\uFFFDa\uFFFD");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

// ---- files that are damaged or not supported

// abc() with the value at `pointer` replaced.
std::string damaged(const std::string& pointer, const json& value) {
  json document = abc();
  document[json::json_pointer(pointer)] = value;
  return document.dump();
}

void expect_refused(const std::string& bytes, const std::initializer_list<std::string>& parts) {
  EXPECT_TRUE(refuses([&] { Tokenizer::from_json(bytes, "dir/tokenizer.json"); }, parts)) << bytes.substr(0, 300);
  EXPECT_TRUE(refuses([&] { Tokenizer::from_json(bytes, "dir/tokenizer.json"); }, {"dir/tokenizer.json"}));
}

TEST(TokenizerFile, IsNamedWhenItIsMissing) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(refuses([&] { Tokenizer(folder.path()); }, {(folder / "tokenizer.json").string(), "cannot be opened"}));
}

TEST(TokenizerFile, IsReadFromItsFolder) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer.json", abc().dump());
  EXPECT_EQ(Tokenizer(folder.path()).encode("abc"), (Tokens{7}));
}

TEST(TokenizerFile, IsRefusedWhenItIsNotJson) {
  expect_refused("", {"JSON"});
  expect_refused(abc().dump().substr(0, 100), {"JSON", "byte 101"});
  expect_refused("{\"model\": \"\xFF\"}", {"JSON"});
  expect_refused("{\"model\": 1e999}", {"JSON"});
  expect_refused("[1]", {"expected an object", "array"});
  expect_refused(std::string(100'000, '['), {"JSON"});
  std::string nested(50'000, '[');
  nested += std::string(50'000, ']');
  expect_refused("{\"model\":" + nested + "}", {"model", "expected an object"});
}

TEST(TokenizerFile, IsRefusedWithoutMerges) {
  json document = abc();
  document["model"].erase("merges");
  expect_refused(document.dump(), {"model", "no merges"});
  expect_refused(damaged("/model/merges", json::array()), {"model.merges is empty", "'bc'"});
}

TEST(TokenizerFile, IsRefusedWithAModelThatIsNotBpe) {
  expect_refused("{}", {"'model' is missing"});
  expect_refused(damaged("/model/type", "Unigram"), {"model", "Unigram", "only BPE"});
  expect_refused(damaged("/model/dropout", 0.1), {"model.dropout"});
}

TEST(TokenizerFile, IsRefusedWithADamagedVocabulary) {
  expect_refused(damaged("/model/vocab", 3), {"model.vocab", "expected an object"});
  expect_refused(damaged("/model/vocab/a", -1), {"model.vocab['a']", "-1"});
  expect_refused(damaged("/model/vocab/a", 1e18), {"model.vocab['a']", "expected a token id"});
  expect_refused(damaged("/model/vocab/a", 18446744073709551615U), {"model.vocab['a']", "18446744073709551615"});
  expect_refused(damaged("/model/vocab/a", 1 << 30), {"model.vocab['a']", "1073741824"});
  expect_refused(damaged("/model/vocab/a", "x"), {"model.vocab['a']", "expected a token id"});
  expect_refused(damaged("/model/vocab/a", 1), {"model.vocab", "same id 1"});
}

TEST(TokenizerFile, IsRefusedWithADamagedMerge) {
  expect_refused(damaged("/model/merges", "a b"), {"model.merges", "expected an array"});
  expect_refused(damaged("/model/merges/1", "a b c"), {"model.merges[1]", "'a b c'"});
  expect_refused(damaged("/model/merges/1", "ab"), {"model.merges[1]", "'ab'"});
  expect_refused(damaged("/model/merges/1", json::array({"a"})), {"model.merges[1]"});
  expect_refused(damaged("/model/merges/1", {"x", "b"}), {"model.merges[1]", "'x' is not in the vocabulary"});
  expect_refused(damaged("/model/merges/1", {"b", "d"}), {"model.merges[1]", "'bd' is not in the vocabulary"});
  expect_refused(damaged("/model/merges/1", {"", ""}), {"model.merges[1]"});
}

TEST(TokenizerFile, IsRefusedWithAComponentThatIsNotKnown) {
  expect_refused(damaged("/normalizer", {{"type", "Precompiled"}}), {"normalizer", "'Precompiled' is not supported"});
  expect_refused(damaged("/normalizer", {{"pattern", 1}}), {"normalizer", "'type' is missing"});
  expect_refused(damaged("/pre_tokenizer", {{"type", "Odd\nType"}}), {"pre_tokenizer", "'Odd?Type'"});
  expect_refused(damaged("/pre_tokenizer", split("(", "Isolated")), {"pre_tokenizer.pattern.Regex", "compile"});
  expect_refused(damaged("/pre_tokenizer", split("a", "Odd")), {"pre_tokenizer.behavior", "'Odd'"});
  expect_refused(damaged("/decoder", {{"type", "CTC"}}), {"decoder", "'CTC' is not supported"});
  expect_refused(damaged("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}}), {"start"});
  expect_refused(damaged("/post_processor", {{"type", "Odd"}}), {"post_processor", "'Odd' is not supported"});
  expect_refused(damaged("/added_tokens", {{{"id", 3}}}), {"added_tokens[0]", "'content' is missing"});
  expect_refused(damaged("/added_tokens", {{{"id", 1e9}, {"content", "x"}}}), {"added_tokens[0].id"});
}

TEST(TokenizerFile, IsRefusedWithATemplateThatHasNoPlaceForTheText) {
  const json token = {{"SpecialToken", {{"id", "<s>"}}}}, text = {{"Sequence", {{"id", "A"}}}};
  const auto with = [](const json& single) {
    return damaged("/post_processor",
                   {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", {{"<s>", {{"ids", {7}}}}}}});
  };
  expect_refused(with(json::array({token})), {"post_processor.single", "no place for the text"});
  expect_refused(with(json::array({text, text})), {"post_processor.single[1]"});
  expect_refused(with(json::array({text, {{"SpecialToken", {{"id", "<x>"}}}}})),
                 {"special_tokens", "'<x>' is missing"});
}

TEST(TokenizerFile, IsRefusedWithSequencesBeyondReason) {
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  expect_refused(damaged("/normalizer", nested), {"normalizer", "deep"});
  const json many = {{"type", "Sequence"}, {"pretokenizers", json(1000, json{{"type", "Digits"}})}};
  expect_refused(damaged("/pre_tokenizer", many), {"pre_tokenizer", "more than"});
}

}  // namespace
}  // namespace hayloft::runtime
