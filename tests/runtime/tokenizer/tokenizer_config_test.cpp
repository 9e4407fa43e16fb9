// What tokenizer_config.json says beside tokenizer.json. Hugging Face transformers 5 reads both with its
// TokenizersBackend: tokenizer.json holds, whatever add_bos_token, add_eos_token and add_prefix_space say, and
// split_special_tokens alone gives other ids.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/tokenizer/config_notes.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;

// Notes on a config beside the tokenizer.json of a golden folder.
std::vector<std::string> notes(const char* golden, const json& config) {
  const test::TemporaryFolder folder;
  std::filesystem::copy(
      std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/tokenizers" / golden / "tokenizer.json", folder.path());
  folder.write("tokenizer_config.json", config.dump());
  return tokenizer_config_notes(folder.path(), Tokenizer(folder.path()));
}

TEST(TokenizerConfig, UnknownFieldsAreNotedInOneLine) {
  const json usual = {{"tokenizer_class", "LlamaTokenizer"},
                      {"model_max_length", 1e30},
                      {"legacy", true},
                      {"padding_side", "left"},
                      {"clean_up_tokenization_spaces", false},
                      {"bos_token", "<s>"},
                      {"eos_token", "</s>"},
                      {"image_token", "<s>"},
                      {"unset", nullptr}};
  EXPECT_EQ(notes("llama2", usual), std::vector<std::string>());
  json more = usual;
  more["zeal"] = 1;
  more["do_upper_case"] = true;
  const std::vector<std::string> found = notes("llama2", more);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("tokenizer_config.json: not known and without effect: do_upper_case, zeal"),
            std::string::npos)
      << found[0];
}

TEST(TokenizerConfig, ContradictionsOfTokenizerJsonAreNoted) {
  const json tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const auto with = [&](const char* field, bool flag) {
    json config = tokens;
    config[field] = flag;
    return notes("llama2", config);
  };
  EXPECT_TRUE(with("add_bos_token", true).empty());
  EXPECT_TRUE(with("add_eos_token", false).empty());
  EXPECT_TRUE(with("add_prefix_space", true).empty());
  ASSERT_EQ(with("add_bos_token", false).size(), 1u);
  EXPECT_NE(with("add_bos_token", false)[0].find("puts a <s> before a text"), std::string::npos);
  ASSERT_EQ(with("add_eos_token", true).size(), 1u);
  EXPECT_NE(with("add_eos_token", true)[0].find("puts no </s> behind a text"), std::string::npos);
  ASSERT_EQ(with("add_prefix_space", false).size(), 1u);
  EXPECT_NE(with("add_prefix_space", false)[0].find("puts a space before a text"), std::string::npos);
}

TEST(TokenizerConfig, SplittingSpecialTokensIsRefused) {
  EXPECT_TRUE(notes("llama2", {{"split_special_tokens", false}}).empty());
  EXPECT_TRUE(test::refuses(
      [] {
        notes("llama2", {{"split_special_tokens", true}});
      },
      {"tokenizer_config.json", "split_special_tokens is true"}));
}

}  // namespace
}  // namespace hayloft::runtime
