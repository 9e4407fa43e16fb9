// Reads what the keys of a GGUF's vocabulary say beside its words, and what holds where they are missing.
#include "runtime/checkpoint/gguf/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>

#include "runtime/checkpoint/gguf/file.h"
#include "runtime/tokenizer/document.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/gguf_image.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::gguf {
namespace {

using Ids = std::vector<std::int32_t>;

// A vocabulary of SentencePiece's, without ids and types of its tokens.
test::GgufImage sentencepiece(const char* architecture) {
  test::GgufImage image;
  image.set("general.architecture", architecture);
  image.set("tokenizer.ggml.model", "llama");
  image.set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", "<|end|>", "\u2581", "a",
                                                              "\u2581a", "<0x0A>", "<|endoftext|>"});
  image.set("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, 0, -2, -3, -1, 0, 0});
  return image;
}
test::GgufImage with_types(test::GgufImage image, std::int32_t type_of_end = 3) {
  image.set("tokenizer.ggml.token_type", Ids{2, 3, 3, type_of_end, 1, 1, 1, 6, 3});
  return image;
}

template <class Read>
auto of(const test::GgufImage& image, const Read& read) {
  const test::TemporaryFolder folder;
  const File file(folder.write("m.gguf", image.bytes()));
  return read(file.metadata());
}
Ids ids(const test::GgufImage& image, const char* text) {
  return of(image, [&](const Metadata& metadata) {
    return Tokenizer(TokenizerDocument{tokenizer_document(metadata), "m.gguf"}).encode_prompt(text);
  });
}

TEST(GgufTokenizer, Phi3sTokensTakeInTheWhiteSpaceBehindThem) {
  const char* const text = "<|end|>\na<|endoftext|>\na";
  EXPECT_EQ(ids(with_types(sentencepiece("llama")), text), (Ids{1, 3, 4, 7, 5, 8, 4, 7, 5}));
  EXPECT_EQ(ids(with_types(sentencepiece("phi3")), text), (Ids{1, 3, 6, 8, 4, 7, 5}));
  test::GgufImage named = with_types(sentencepiece("llama"));
  named.set("general.name", "Phi-3-mini-4k-instruct");
  EXPECT_EQ(ids(named, text), (Ids{1, 3, 6, 8, 4, 7, 5}));
}

TEST(GgufTokenizer, AVocabularyWithScoresHasUsualIdsWhereNoKeySaysOtherwise) {
  test::GgufImage image = with_types(sentencepiece("llama"));
  EXPECT_EQ(ids(image, "a"), (Ids{1, 6}));
  EXPECT_EQ(of(image, end_tokens), (Ids{2, 3, 8}));
  image.set("tokenizer.ggml.bos_token_id", std::uint32_t{8});
  EXPECT_EQ(ids(image, "a"), (Ids{8, 6}));
}

TEST(GgufTokenizer, ATokenOfTheUsersEndsATurnByItsName) {
  EXPECT_EQ(of(with_types(sentencepiece("llama"), 4), end_tokens), (Ids{2, 3, 8}));
  EXPECT_EQ(of(with_types(sentencepiece("llama"), 1), end_tokens), (Ids{2, 8}));
}

TEST(GgufTokenizer, AMergeThatIsListedTwiceIsSaid) {
  const auto with = [](const std::vector<std::string>& merges) {
    test::GgufImage image;
    image.set("tokenizer.ggml.model", "gpt2");
    image.set("tokenizer.ggml.pre", "gpt-2");
    image.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "c", "ab", "bc"});
    image.set("tokenizer.ggml.merges", merges);
    return image;
  };
  EXPECT_EQ(ids(with({"a b", "b c"}), "abc"), (Ids{3, 2}));
  EXPECT_TRUE(of(with({"a b", "b c"}), tokenizer_notes).empty());
  const test::GgufImage twice = with({"a b", "b c", "a b"});
  EXPECT_EQ(ids(twice, "abc"), (Ids{0, 4}));
  const std::vector<std::string> notes = of(twice, tokenizer_notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("m.gguf: tokenizer.ggml.merges has 'a b' twice; the later place counts"), std::string::npos)
      << notes[0];
}

// Names that llama.cpp ends an answer at, too.
TEST(GgufTokenizer, AnAnswerEndsAtTheNamesOfEveryMaker) {
  const auto ends = [](const std::vector<std::string>& tokens) {
    test::GgufImage image;
    image.set("tokenizer.ggml.model", "gpt2");
    image.set("tokenizer.ggml.tokens", tokens);
    image.set("tokenizer.ggml.token_type", Ids(tokens.size(), 3));
    return of(image, end_tokens);
  };
  EXPECT_EQ(ends({"<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|begin|>"}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(ends({"<|begin|>", "<end_of_utterance>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"}), (Ids{1, 2}));
  EXPECT_EQ(ends({"<|end|>", "<|flush|>", "<|calls|>"}), (Ids{1, 2}));
  EXPECT_EQ(ends({"<|end|>", "<|flush|>"}), (Ids{0, 1}));
}

TEST(GgufTokenizer, TypesThatAreMissingAreSaidAndTooFewRefused) {
  test::GgufImage image = sentencepiece("llama");
  EXPECT_TRUE(of(image, tokenizer_notes).empty());
  image.set("tokenizer.chat_template", "{{ messages }}");
  const std::vector<std::string> notes = of(image, tokenizer_notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("m.gguf: tokenizer.ggml.token_type is missing"), std::string::npos) << notes[0];
  EXPECT_TRUE(of(with_types(image), tokenizer_notes).empty());
  image.set("tokenizer.ggml.token_type", Ids{2, 3, 3});
  EXPECT_TRUE(test::refuses([&] { of(image, tokenizer_document); },
                            {"m.gguf", "tokenizer.ggml.token_type is a list of 3", "each of the 9 tokens"}));
}

}  // namespace
}  // namespace hayloft::runtime::gguf
