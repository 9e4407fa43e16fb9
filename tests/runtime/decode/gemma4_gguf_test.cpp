// GGUF files of Gemma 4 that say what is not computed here, or do not say what is needed.
#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "gpu/make_backend.h"
#include "runtime/checkpoint/gguf/parse.h"
#include "runtime/decode/model.h"
#include "tests/support/gguf_from_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {
namespace {

class Gemma4Gguf : public ::testing::Test {
 protected:
  // The file's bytes, with those behind a key and its type exchanged; with an empty `value` the key itself.
  std::string with(const std::string& key, const std::string& value) const {
    std::string bytes = image_;
    const std::size_t at = bytes.find(key);
    EXPECT_NE(at, std::string::npos) << key;
    if (value.empty()) {
      bytes[at] = 'X';
    } else {
      std::memcpy(bytes.data() + at + key.size() + 4, value.data(), value.size());
    }
    return bytes;
  }
  testing::AssertionResult refuses(const std::string& bytes, std::initializer_list<std::string> parts) const {
    return test::refuses([&] { Model model(folder_.write("m.gguf", bytes), *backend_); }, parts);
  }
  static std::string number(std::uint32_t value) { return test::GgufImage::raw(value); }

  test::TemporaryFolder folder_;
  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  std::string image_ = test::GgufFromFolder(goldens / "gemma4").image.bytes();
};

TEST_F(Gemma4Gguf, WhatOtherModelsOfTheFamilyHaveIsRefusedByName) {
  EXPECT_TRUE(refuses(with("gemma4.attention.shared_kv_layers", number(3)), {"shared_kv_layers is 3", "E2B"}));
  EXPECT_TRUE(refuses(with("gemma4.embedding_length_per_layer_input", number(256)),
                      {"embedding_length_per_layer_input is 256", "E2B"}));
}

TEST_F(Gemma4Gguf, TheHeadsOfSlidingLayersMustBeSaid) {
  EXPECT_TRUE(refuses(with("gemma4.attention.key_length_swa", ""), {"gemma4.attention.key_length_swa"}));
  EXPECT_TRUE(refuses(with("gemma4.attention.sliding_window_pattern", ""), {"attention.sliding_window_pattern"}));
  EXPECT_TRUE(refuses(with("gemma4.attention.value_length_swa", number(24)), {"value_length_swa is 24", "16"}));
}

TEST_F(Gemma4Gguf, WhichComponentsTurnMustBeSaid) {
  EXPECT_TRUE(refuses(with("rope_freqs.weight", ""), {"has no rope_freqs.weight"}));
  std::string bytes = image_;
  const gguf::Parsed parsed = gguf::parse(std::as_bytes(std::span(bytes)), "m.gguf");
  const auto at = reinterpret_cast<const char*>(parsed.tensors.at("rope_freqs.weight").data.data()) - bytes.data();
  const float scaled = 8;
  std::memcpy(bytes.data() + at, &scaled, sizeof scaled);
  EXPECT_TRUE(refuses(bytes, {"rope_freqs.weight must be ones"}));
}

}  // namespace
}  // namespace hayloft::runtime
