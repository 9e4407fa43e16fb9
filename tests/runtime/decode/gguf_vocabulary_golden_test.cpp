#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/decode/load_tokenizer.h"
#include "tests/support/parameter_name.h"
#include "tests/support/real_models.h"
#include "tests/support/temporary_folder.h"

// The vocabularies that llama.cpp tests its tokenizers with (scripts/models vocabularies): NAME.gguf, texts in
// NAME.gguf.inp, and in NAME.gguf.out the ids that the models' own tokenizers have given for them.
namespace hayloft::runtime {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> texts_of(const std::filesystem::path& path) {
  const std::string all = read(path);
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size();) {  // each ends in the separator
    const std::size_t end = std::min(all.find(separator, at), all.size());
    texts.push_back(all.substr(at, end - at));
    at = end + separator.size();
  }
  return texts;
}

std::vector<std::vector<std::int32_t>> ids_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::vector<std::int32_t>> lists;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    lists.emplace_back(std::istream_iterator<std::int32_t>(words), std::istream_iterator<std::int32_t>());
  }
  return lists;
}

class GgufVocabularyGolden : public ::testing::TestWithParam<const char*> {};

std::filesystem::path vocabulary_file(const std::string& name) {
  return test::models_folder() / "vocabularies" / ("ggml-vocab-" + name + ".gguf");
}

void expect_ids_of_the_models_own_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& model) {
  const std::vector<std::string> texts = texts_of(model.string() + ".inp");
  const std::vector<std::vector<std::int32_t>> expected = ids_of(model.string() + ".out");
  ASSERT_EQ(expected.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i], false), expected[i]) << "text " << i << ": " << texts[i];
  }
}

TEST_P(GgufVocabularyGolden, IdsAreThoseOfTheModelsOwnTokenizer) {
  const std::filesystem::path model = vocabulary_file(GetParam());
  if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is not there; get it by: scripts/models vocabularies";
  expect_ids_of_the_models_own_tokenizer(load_tokenizer(model), model);
}

// The same where the file does not say how text is cut.
TEST(GgufVocabularyWithoutAName, KnownVocabulariesNeedNoName) {
  for (const char* name : {"llama-bpe", "qwen2", "gpt-2", "starcoder", "refact", "deepseek-coder", "falcon"}) {
    const std::filesystem::path model = vocabulary_file(name);
    if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is not there; get it: scripts/models vocabularies";
    SCOPED_TRACE(name);
    std::string bytes = read(model);
    const std::string key = "tokenizer.ggml.pre";
    const std::size_t at = bytes.find(key);
    ASSERT_NE(at, std::string::npos);
    bytes[at + key.size() - 1] = 'o';
    const test::TemporaryFolder folder;
    expect_ids_of_the_models_own_tokenizer(load_tokenizer(folder.write("m.gguf", bytes)), model);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufVocabularyGolden,
                         ::testing::Values("llama-bpe", "llama-spm", "qwen2", "qwen35", "phi-3", "gemma-4", "gpt-2",
                                           "mpt", "starcoder", "refact", "command-r", "falcon", "deepseek-coder"),
                         test::by_value);

}  // namespace
}  // namespace hayloft::runtime
