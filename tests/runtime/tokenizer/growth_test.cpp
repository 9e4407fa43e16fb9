#include <gtest/gtest.h>

#include <string>

#include "offload/error.h"
#include "tests/runtime/tokenizer/small_tokenizer.h"

// What a small file asks for: any number of gigabytes and of hours.
namespace hayloft::runtime {
namespace {

using test::abc;
using test::json;
using test::read;

json replace(const json& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}

json sequence(const char* list, const json& step, int times) {
  json steps = json::array();
  for (int i = 0; i < times; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {list, steps}};
}

std::string refusal_of(const json& normalizer, const std::string& text) {
  json document = abc();
  document["normalizer"] = normalizer;
  try {
    read(document).encode(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Growth, OfANormalizerIsBounded) {
  const std::string text(1000, 'a');
  const json steps[] = {
      sequence("normalizers", replace({{"String", "a"}}, std::string(10, 'a')), 10),
      sequence("normalizers", replace({{"Regex", "a|b"}}, std::string(10, 'a')), 10),
      replace({{"String", "a"}}, std::string(100000, 'b')),
      replace({{"String", ""}}, std::string(100000, 'b')),
      replace({{"Regex", "(?=a)"}}, std::string(100000, 'b')),
      sequence("normalizers", {{"type", "Prepend"}, {"prepend", std::string(20000, 'b')}}, 10),
      {{"type", "Prepend"}, {"prepend", std::string(std::size_t{64} << 20, 'b')}},
  };
  for (const json& step : steps) {
    const std::string said = refusal_of(step, text);
    EXPECT_NE(said.find("test.json: normalizer: makes more than "), std::string::npos) << said;
    EXPECT_NE(said.find("of a text of 1000"), std::string::npos) << said;
  }
  // Each of these letters becomes two.
  const std::string letters = "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9";
  EXPECT_NE(refusal_of(sequence("normalizers", {{"type", "ByteLevel"}}, 60), letters).find("makes more"),
            std::string::npos);
}

TEST(Growth, SoIsTheWorkOfManySteps) {
  json steps = sequence("normalizers", replace({{"String", "a"}}, "a"), 40);
  steps["normalizers"].insert(steps["normalizers"].begin(), replace({{"String", "a"}}, std::string(30, 'a')));
  EXPECT_NE(refusal_of(steps, std::string(1000, 'a')).find("steps"), std::string::npos);
  EXPECT_EQ(refusal_of(sequence("normalizers", replace({{"String", "a"}}, "a"), 60), std::string(1000, 'a')), "");
}

// The largest that Unicode has: one character of three bytes becomes 33 (U+FDFA), and byte letters double those.
TEST(Growth, OfRealNormalizersIsNot) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\uFDFA";
  json steps = sequence("normalizers", {{"type", "NFKC"}}, 1);
  steps["normalizers"].push_back(replace({{"String", " "}}, "\u2581"));
  steps["normalizers"].push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  EXPECT_EQ(refusal_of(steps, text), "");
  steps["normalizers"].push_back({{"type", "ByteLevel"}});
  EXPECT_EQ(refusal_of(steps, text), "");
  EXPECT_EQ(refusal_of(steps, "\uFDFA"), "");
  EXPECT_EQ(refusal_of(steps, "a"), "");
}

TEST(Growth, OfAPreTokenizerIsBounded) {
  json document = abc();
  document["pre_tokenizer"] =
      sequence("pretokenizers", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}, 60);
  try {
    read(document).encode("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("test.json: pre_tokenizer: "), std::string::npos) << error.what();
  }
  // One character, as the reference has it: of spaces each would become several.
  document["pre_tokenizer"] = sequence("pretokenizers", {{"type", "Metaspace"}, {"replacement", "          "}}, 12);
  EXPECT_THROW(read(document), Error);
}

TEST(Growth, OfADecoderIsBounded) {
  json document = abc();
  document["decoder"] = sequence("decoders", replace({{"String", "a"}}, std::string(10, 'a')), 10);
  const Tokenizer tokenizer = read(document);
  try {
    tokenizer.decode({0, 1, 2});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("test.json: decoder: makes more than "), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(tokenizer.decode({1, 2}), "bc");
  document["decoder"] = replace({{"String", "a"}}, "<0xE2>");
  EXPECT_EQ(read(document).decode({0, 1}), "<0xE2>b");
}

}  // namespace
}  // namespace hayloft::runtime
