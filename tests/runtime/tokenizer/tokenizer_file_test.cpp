#include <gtest/gtest.h>

#include <string>

#include "runtime/tokenizer/tokenizer.h"
#include "tests/runtime/tokenizer/small_tokenizer.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using test::abc;
using test::json;
using test::refuses;
using test::split;
using test::Tokens;

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
  EXPECT_TRUE(refuses([&] { Tokenizer(folder.path()); }, {(folder / "tokenizer.json").string(), "is not there"}));
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
