#include "runtime/checkpoint/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/gguf_image.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

// Writes a model whose vocabulary takes more than a megabyte, with a key behind it, as tools put there what they
// change.
std::filesystem::path model_of(int used_experts, const test::TemporaryFolder& folder) {
  test::GgufImage image;
  image.set("general.architecture", "qwen3moe");
  image.set("tokenizer.ggml.tokens", std::vector<std::string>(20000, std::string(60, 'x')));
  image.set("qwen3moe.expert_used_count", used_experts);
  image.tensor("token_embd.weight", {1 << 20, 4}, 0, std::string(std::size_t{16} << 20, '\0'));
  return folder.write("m.gguf", image.bytes());
}

TEST(Fingerprint, CoversAKeyBehindALongVocabulary) {
  const test::TemporaryFolder folder;
  const Fingerprint of_two = fingerprint(model_of(2, folder));
  EXPECT_EQ(fingerprint(model_of(2, folder)), of_two);
  EXPECT_NE(fingerprint(model_of(3, folder)), of_two);
}

TEST(Fingerprint, FormerlyOfALongVocabularyTheBeginningCountedAndOfAShortOneTheName) {
  const test::TemporaryFolder folder;
  const auto former = [](const std::filesystem::path& model) { return former_fingerprint(model, fingerprint(model)); };
  const Fingerprint of_two = former(model_of(2, folder));
  EXPECT_EQ(former(model_of(3, folder)), of_two);
  EXPECT_NE(fingerprint(model_of(2, folder)), of_two);

  test::GgufImage brief;
  brief.set("general.architecture", "llama");
  const auto first = folder.write("first.gguf", brief.bytes()), second = folder.write("second.gguf", brief.bytes());
  EXPECT_EQ(fingerprint(first), fingerprint(second));
  EXPECT_NE(former(first), former(second));
}

}  // namespace
}  // namespace hayloft::runtime
