// How text is cut where a GGUF file does not say: by its vocabulary, where that is a known one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/gguf/file.h"
#include "runtime/checkpoint/gguf/tokenizer.h"
#include "tests/support/gguf_image.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::gguf {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

// A vocabulary of so many tokens, with some of them as given.
Texts vocabulary(std::size_t size, const std::vector<std::pair<std::size_t, std::string>>& some) {
  Texts texts;
  for (std::size_t i = 0; i < size; ++i) texts.push_back("<" + std::to_string(i) + ">");
  for (const auto& [id, text] : some) texts[id] = text;
  return texts;
}

struct Read {
  json document;
  std::vector<std::string> notes;
};
Read read(const Texts& texts, const char* pre) {
  test::GgufImage image;
  image.set("tokenizer.ggml.model", "gpt2");
  if (pre) image.set("tokenizer.ggml.pre", pre);
  image.set("tokenizer.ggml.tokens", texts);
  image.set("tokenizer.ggml.merges", Texts{"< 1"});
  image.set("tokenizer.ggml.bos_token_id", std::uint32_t{0});
  const test::TemporaryFolder folder;
  const File file(folder.write("m.gguf", image.bytes()));
  return {tokenizer_document(file.metadata()), tokenizer_notes(file.metadata())};
}

TEST(GgufPretokenizer, AKnownVocabularyIsCutAsItsModelsCutItAndThatIsSaid) {
  const Texts llama3 = vocabulary(128256, {{127998, "ãĥ¼ãĥ¼"}, {127999, "éĶ¦"}});
  const Texts qwen2 = vocabulary(151936, {{151641, "âºŁ"}, {151642, "â½Ĺ"}});
  for (const auto& [texts, pre] : {std::pair(llama3, "llama-bpe"), std::pair(qwen2, "qwen2")}) {
    const Read named = read(texts, pre), unnamed = read(texts, nullptr), empty = read(texts, "");
    EXPECT_EQ(unnamed.document, named.document) << pre;  // BOS of Llama 3 included
    EXPECT_EQ(empty.document, named.document) << pre;
    EXPECT_TRUE(named.notes.empty());
    ASSERT_EQ(unnamed.notes.size(), 1u);
    EXPECT_NE(unnamed.notes[0].find("m.gguf: tokenizer.ggml.pre is missing"), std::string::npos) << unnamed.notes[0];
    EXPECT_NE(unnamed.notes[0].find(pre), std::string::npos) << unnamed.notes[0];
  }
}

TEST(GgufPretokenizer, AnotherVocabularyIsCutByDefaultWithAWarning) {
  const Texts texts = vocabulary(1000, {});
  const Read unnamed = read(texts, nullptr), named = read(texts, "default");
  EXPECT_EQ(unnamed.document, named.document);
  EXPECT_TRUE(named.notes.empty());
  ASSERT_EQ(unnamed.notes.size(), 1u);
  EXPECT_NE(unnamed.notes[0].find("is missing and the vocabulary is not a known one"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime::gguf
