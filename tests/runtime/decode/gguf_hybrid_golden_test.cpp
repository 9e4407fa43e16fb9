// tests/golden/gguf/qwen35.gguf, a random qwen3_5 as llama.cpp's converter writes it, qwen3moe.gguf, a random mixture
// of experts, gemma4.gguf, another with two kinds of layers, and in qwen35-logits.gguf and the like what llama.cpp
// makes of some tokens with the same weights; by scripts/make-qwen35-gguf and scripts/make-moe-gguf.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gpu/make_backend.h"
#include "runtime/checkpoint/gguf/file.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/decode/session.h"
#include "tests/support/parameter_name.h"

namespace hayloft::runtime {
namespace {

const std::filesystem::path gguf_goldens = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf";

class GgufModelGolden : public ::testing::TestWithParam<const char*> {
 protected:
  GgufModelGolden() : expected_(gguf_goldens / (std::string(GetParam()) + "-logits.gguf")) {
    for (const std::int64_t token : expected_.metadata().integers("tokens")) {
      tokens_.push_back(static_cast<std::int32_t>(token));
    }
    const gguf::Tensor& tensor = *expected_.find("log_probabilities");
    expected_values_.resize(static_cast<std::size_t>(tensor.elements()));
    gguf::dequantise(tensor.type, tensor.data, expected_values_.data());
  }

  // Keys and values are f16 in both programs, and each adds products up in an order of its own: qwen35 differs by
  // 1.5e-3, and would by 13 with value heads in the folder's order, qwen3moe by 7e-3.
  void expect_row(std::size_t row, std::span<const float> logits) const {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i] - std::log(sum), expected_values_[row * logits.size() + i], bound_)
          << "token " << row << ", logit " << i;
    }
  }

  const double bound_ = std::string(GetParam()) == "qwen35" ? 5e-3 : 1.5e-2;
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = 64 << 20}};
  Model model_{gguf_goldens / (std::string(GetParam()) + ".gguf"), *backend_};
  gguf::File expected_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> expected_values_;
};

TEST_P(GgufModelGolden, LogitsOfAPromptAreThoseOfLlamaCpp) {
  Session session(model_, arena_, {.cache = {.block_tokens = 16, .window = 8}});
  const std::vector<float> logits = session.score(tokens_);
  ASSERT_EQ(logits.size(), expected_values_.size());
  const std::size_t vocabulary = logits.size() / tokens_.size();
  for (std::size_t row = 0; row < tokens_.size(); ++row) {
    expect_row(row, std::span(logits).subspan(row * vocabulary, vocabulary));
  }
}

TEST_P(GgufModelGolden, LogitsOfSingleStepsAreThoseOfLlamaCpp) {
  Session session(model_, arena_, {.cache = {.block_tokens = 16, .window = 8}});
  for (std::size_t row = 0; row < tokens_.size(); ++row) expect_row(row, session.step(tokens_[row]));
}

TEST_P(GgufModelGolden, TextComesBackFromItsTokens) {
  const Tokenizer tokenizer = load_tokenizer(gguf_goldens / (std::string(GetParam()) + ".gguf"));
  const std::string text = "The license, in 12 lines.\n";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), true), text);
}

INSTANTIATE_TEST_SUITE_P(Of, GgufModelGolden, ::testing::Values("qwen35", "qwen3moe", "gemma4"), test::by_value);

}  // namespace
}  // namespace hayloft::runtime
