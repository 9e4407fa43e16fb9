#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "offload/text/utf8.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/parameter_name.h"

// Small tokenizers of every kind against Hugging Face's tokenizers, recorded by scripts/make-tokenizer-goldens.py.
namespace hayloft::runtime {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::int32_t>;

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenTokenizer()
      : folder_(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/tokenizers" / GetParam()),
        tokenizer_(folder_),
        cases_(json::parse(std::ifstream(folder_ / "cases.json")).at("cases")) {}

  std::filesystem::path folder_;
  Tokenizer tokenizer_;
  json cases_;
};

std::string as_text(const std::string& bytes) {
  Utf8Stream stream;
  return stream.push(bytes) + stream.finish();
}

TEST_P(GoldenTokenizer, EncodesAsRecorded) {
  ASSERT_GT(cases_.size(), 10U);
  for (const json& c : cases_) {
    const auto text = c.at("text").get<std::string>();
    EXPECT_EQ(tokenizer_.encode(text), c.at("ids").get<Tokens>()) << c.at("text");
    EXPECT_EQ(tokenizer_.encode(text, /*special=*/false), c.at("plain").get<Tokens>()) << c.at("text");
  }
}

TEST_P(GoldenTokenizer, ReadsGuardedSpecialTokensAsWords) {
  for (const json& c : cases_) {
    const std::string text = tokenizer_.guarded(c.at("text").get<std::string>(), "~0~");
    EXPECT_EQ(tokenizer_.encode(text, /*special=*/true, "~0~"), c.at("as_words").get<Tokens>()) << text;
  }
}

TEST_P(GoldenTokenizer, DecodesAsRecorded) {
  for (const json& c : cases_) {
    const auto ids = c.at("ids").get<Tokens>();
    EXPECT_EQ(as_text(tokenizer_.decode(ids)), c.at("decoded").get<std::string>()) << c.at("text");
    EXPECT_EQ(as_text(tokenizer_.decode(ids, /*special=*/true)), c.at("decoded_special").get<std::string>())
        << c.at("text");
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenTokenizer,
                         ::testing::Values("continuations", "declared_decoder", "declared_named", "declared_older",
                                           "flags", "gemma", "gpt2", "llama2", "llama3", "metaspace", "o200k", "qwen2",
                                           "roberta", "split_chain", "word_ends"),
                         test::by_value);

class StreamedTokenizer : public GoldenTokenizer {};

TEST_P(StreamedTokenizer, DecodesPieceByPieceToTheSameText) {
  for (const json& c : cases_) {
    const auto ids = c.at("ids").get<Tokens>();
    Utf8Stream stream;
    std::string streamed;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      streamed += stream.push(tokenizer_.decode({ids[i]}, /*special=*/true, /*continued=*/i > 0));
    }
    streamed += stream.finish();
    EXPECT_EQ(streamed, c.at("decoded_special").get<std::string>()) << c.at("text");
  }
}

INSTANTIATE_TEST_SUITE_P(, StreamedTokenizer, ::testing::Values("gemma", "gpt2", "llama2", "llama3", "qwen2"),
                         test::by_value);

}  // namespace
}  // namespace hayloft::runtime
