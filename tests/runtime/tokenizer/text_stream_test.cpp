#include "runtime/tokenizer/text_stream.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/runtime/tokenizer/small_tokenizer.h"

namespace hayloft::runtime {
namespace {

using test::added_token;
using test::characters;
using test::json;
using test::read;
using test::Tokens;

std::string streamed(const Tokenizer& tokenizer, std::int32_t last_of_prompt, const Tokens& tokens) {
  TextStream stream(tokenizer, last_of_prompt);
  std::string text;
  for (const std::int32_t token : tokens) text += stream.push(token);
  return text + stream.finish();
}

// SentencePiece-style: 0 is a, 1 is b, 2 the mark of a space, 3 and 4 words with one; 50 is special.
Tokenizer sentencepiece() {
  json document = characters({"a", "b", "\u2581"}, {{"\u2581", "a"}, {"\u2581", "b"}});
  document["added_tokens"] = {added_token(50, "<end>", {"special"}), added_token(51, "<tool>")};
  document["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  return read(document);
}

TEST(TextStream, KeepsTheSpaceBehindAHiddenSpecialToken) {
  EXPECT_EQ(streamed(sentencepiece(), 0, {3, 50, 4}), " a b");
  EXPECT_EQ(streamed(sentencepiece(), 0, {50, 4, 50, 50, 3}), " b a");
  EXPECT_EQ(streamed(sentencepiece(), 0, {51, 4}), "<tool> b");
}

TEST(TextStream, DropsTheSpaceOfATextThatBeginsBehindASpecialToken) {
  EXPECT_EQ(streamed(sentencepiece(), 50, {3, 4}), "a b");
  EXPECT_EQ(streamed(sentencepiece(), 50, {50, 3, 4}), "a b");
  EXPECT_EQ(streamed(sentencepiece(), 0, {3, 4}), " a b");
}

// Whatever the kind of tokenizer, the pieces are the text that decoding at once gives.
TEST(TextStream, StreamsWhatDecodingAtOnceGives) {
  for (const char* kind : {"continuations", "gemma", "gpt2", "llama2", "llama3", "metaspace", "qwen2", "word_ends"}) {
    const Tokenizer tokenizer(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/tokenizers" / kind);
    for (const char* text : {"The needle is in the hay.", " two  spaces", "caf\u00e9 \U0001F600 \u5929"}) {
      const Tokens tokens = tokenizer.encode(text, /*special=*/false);
      const std::string whole = tokenizer.decode(tokens);
      const std::string begun = tokenizer.decode({tokens[0]});
      const Tokens rest(tokens.begin() + 1, tokens.end());
      Utf8Stream repaired;
      EXPECT_EQ(begun + streamed(tokenizer, tokens[0], rest), repaired.push(whole) + repaired.finish()) << kind;
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime
