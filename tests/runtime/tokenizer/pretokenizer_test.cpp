#include <gtest/gtest.h>

#include <string>

#include "runtime/tokenizer/pretokenizer/pretokenizer_regex.h"
#include "runtime/tokenizer/unicode.h"
#include "tests/runtime/tokenizer/small_tokenizer.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

using test::abc;
using test::added_token;
using test::characters;
using test::json;
using test::Pieces;
using test::read;
using test::refuses;
using test::split;
using test::Tokens;
using test::words;

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

Pieces cut(const char* pattern, const std::string& text) {
  const Regex regex(pattern, Regex::Syntax::oniguruma, "here");
  Regex::Matcher matcher(regex);
  Pieces found;
  matcher.spans(text,
                [&](std::size_t begin, std::size_t end, bool) { found.push_back(text.substr(begin, end - begin)); });
  return found;
}

// Each match is quick, and all of them together are quadratic in the text.
TEST(Regex, GivesUpOnAPatternThatLooksThroughTheRestAtEveryMatch) {
  const std::string text(100000, 'a');
  EXPECT_TRUE(refuses([&] { cut("a(?=.*b)|a", text); }, {"here: the pattern takes more than"}));
}

TEST(Regex, FindsMatchesThatLieFarApart) {
  std::string stretch;
  for (int i = 0; i < 3001; ++i) stretch += "\u00E9";
  for (std::size_t more : {0, 1, 2, 511, 512, 513}) {
    const std::string before = stretch + std::string(more, 'x');
    EXPECT_EQ(cut("-", before + "-" + stretch + "-"), (Pieces{before, "-", stretch, "-"})) << more;
    EXPECT_EQ(cut("(?<=x)\\z|-", before + "-" + stretch + "x"), (Pieces{before, "-", stretch + "x", ""})) << more;
  }
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

}  // namespace
}  // namespace hayloft::runtime
