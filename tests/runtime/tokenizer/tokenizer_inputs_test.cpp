#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"
#include "tests/runtime/tokenizer/tokenizer_convert.h"

// Published tokenizers and texts, which are not part of the project: HAYLOFT_TEST_DATA names the folder that has them.
namespace hayloft::runtime {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::int32_t>;

class PublishedTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("HAYLOFT_TEST_DATA");
    if (!folder || !*folder) GTEST_SKIP() << "set HAYLOFT_TEST_DATA to the folder of third-party test data";
    folder_ = folder;
  }

  std::string file(const std::string& name) const {
    std::ifstream stream(folder_ / name, std::ios::binary);
    EXPECT_TRUE(stream) << (folder_ / name) << " is missing";
    return std::string(std::istreambuf_iterator<char>(stream), {});
  }

  Tokenizer llama3() const {
    json document = test::byte_level_tokenizer(json::parse(file("tokenizers/llama3/encoder.json")),
                                               test::merge_lines(file("tokenizers/llama3/vocab.bpe")), split("{1,3}"));
    document["model"]["ignore_merges"] = true;
    return Tokenizer::from_json(document.dump(), "llama3");
  }

  Tokenizer qwen2() const {
    json document = test::byte_level_tokenizer(json::parse(file("tokenizers/qwen2.5/vocab.json")),
                                               test::merge_lines(file("tokenizers/qwen2.5/merges.txt")), split(""));
    document["normalizer"] = {{"type", "NFC"}};
    return Tokenizer::from_json(document.dump(), "qwen2.5");
  }

  Tokenizer gpt2() const {
    const auto merges = test::merge_lines(file("tokenizers/gpt2/vocab.bpe"));
    return Tokenizer::from_json(
        test::byte_level_tokenizer(test::vocabulary_of_merges(merges), merges, /*pattern=*/"").dump(), "gpt2");
  }

  Tokenizer llama2() const {
    const auto pieces = test::sentencepiece_pieces(file("tokenizers/llama2/tokenizer.model"));
    return Tokenizer::from_json(test::sentencepiece_tokenizer(pieces).dump(), "llama2");
  }

  // The pairs that llama.cpp tests its tokenizers with.
  void expect_conforming(const Tokenizer& tokenizer, const std::string& name) const {
    const json pairs = json::parse(file("tokenizers/conformance/" + name + "_pairs.json"));
    ASSERT_GT(pairs.size(), 30U);
    for (const json& pair : pairs) {
      EXPECT_EQ(tokenizer.encode(pair.at("text").get<std::string>(), /*special=*/false), pair.at(name).get<Tokens>())
          << pair.at("text");
    }
  }

  void expect_round_trips(const Tokenizer& tokenizer) const {
    for (const char* name : {"text/war-and-peace.txt", "text/frankenstein.txt", "text/promessi_sposi.txt"}) {
      const std::string text = file(name);
      EXPECT_TRUE(tokenizer.decode(tokenizer.encode(text)) == text) << name;
    }
  }

  // Llama 3's split of text; Qwen 2's is the same but for the digits, one at a time.
  static std::string split(const std::string& digits) {
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" + digits +
           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }

  std::filesystem::path folder_;
};

// FNV-1a over the ids, each as four bytes, least significant first.
std::uint64_t fingerprint(const Tokens& tokens) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const std::int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<std::uint32_t>(token) >> shift & 0xFF)) * 0x100000001B3;
    }
  }
  return hash;
}

// The ids of War and Peace as Hugging Face's tokenizers 0.23.3 gives them.
void expect_recorded(const Tokens& tokens, std::size_t count, std::uint64_t expected) {
  EXPECT_EQ(tokens.size(), count);
  EXPECT_EQ(fingerprint(tokens), expected);
}

TEST_F(PublishedTokenizer, Gpt2EncodesAsPublished) {
  const Tokenizer tokenizer = gpt2();
  expect_conforming(tokenizer, "gpt2");
  expect_recorded(tokenizer.encode(file("text/war-and-peace.txt")), 792623, 0xE853470671379CB1);
  expect_round_trips(tokenizer);
}

TEST_F(PublishedTokenizer, Llama3EncodesAsPublished) {
  const Tokenizer tokenizer = llama3();
  expect_conforming(tokenizer, "llama3");
  expect_recorded(tokenizer.encode(file("text/war-and-peace.txt")), 760377, 0x7A384023B268F188);
  expect_round_trips(tokenizer);
}

TEST_F(PublishedTokenizer, Qwen2EncodesAsPublished) {
  const Tokenizer tokenizer = qwen2();
  expect_conforming(tokenizer, "qwen2");
  expect_recorded(tokenizer.encode(file("text/war-and-peace.txt")), 761086, 0xE3AEC75B728DA4A1);
  expect_round_trips(tokenizer);
}

TEST_F(PublishedTokenizer, Llama2EncodesAsPublished) {
  const Tokenizer tokenizer = llama2();
  expect_conforming(tokenizer, "llama2_spm");
  expect_recorded(tokenizer.encode(file("text/war-and-peace.txt"), /*special=*/false), 859224, 0xDFFD499D5D0BA6F1);
  expect_round_trips(tokenizer);
}

TEST_F(PublishedTokenizer, Stories260KEncodesTheStoriesItWasRecordedWith) {
  const auto pieces = test::llama2c_pieces(file("stories260K/tok512.bin"));
  const Tokenizer tokenizer = Tokenizer::from_json(test::sentencepiece_tokenizer(pieces).dump(), "tok512");
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  const std::string bytes = file("stories260K/text512_tokens.i32");
  Tokens recorded(bytes.size() / sizeof(std::int32_t));
  std::memcpy(recorded.data(), bytes.data(), bytes.size());

  // Two stories, each behind a BOS.
  const auto second = std::find(recorded.begin() + 1, recorded.end(), tokenizer.token("<s>"));
  const Tokens first_story(recorded.begin(), second), second_story(second, recorded.end());
  EXPECT_EQ(tokenizer.decode(first_story).substr(0, 31), "One day, a little girl named Li");
  EXPECT_EQ(tokenizer.decode(second_story).substr(0, 16), "Once upon a time");
  EXPECT_EQ(tokenizer.encode(tokenizer.decode(first_story)), first_story);
  EXPECT_EQ(tokenizer.encode(tokenizer.decode(second_story)), second_story);
}

}  // namespace
}  // namespace hayloft::runtime
