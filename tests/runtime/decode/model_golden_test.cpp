// Logits of every architecture against Hugging Face transformers, on the small random checkpoints that
// scripts/make-model-goldens.py makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/make_backend.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/decode/session.h"
#include "tests/support/golden_models.h"
#include "tests/support/parameter_name.h"

namespace hayloft::runtime {
namespace {

struct Golden {
  explicit Golden(const std::filesystem::path& folder) {
    const auto json = nlohmann::json::parse(std::ifstream(folder / "golden.json"));
    tokens = json.at("tokens").get<std::vector<std::int32_t>>();
    const SafetensorsFile file(folder / "logits.safetensors");
    logits = to_f32(file.at("logits"), "logits");
    vocab = static_cast<std::size_t>(file.at("logits").shape.at(1));

    // The cache holds K and V as f16: each is off by at most 2^-11 of itself. What that does to the logits is a matter
    // of the model, so it was measured on the reference, with the same values rounded the same way; here it may differ
    // by the values that lie on a tie within f32's error, about one in a thousand, for which a quarter is ample. The
    // rest is f32 sums taken in another order, as far from exact as the reference itself is, or a few times that.
    const double f32 = 4 * json.at("f32").at("largest").get<double>();
    largest = 1.25 * json.at("f16_cache").at("largest").get<double>() + f32;
    rms = 1.25 * json.at("f16_cache").at("rms").get<double>() + f32;
  }

  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // [T][vocab]
  std::size_t vocab = 0;
  double largest = 0;  // allowed deviation of any one logit
  double rms = 0;      // and of all of them in root mean square: a tenth of that, so a small mistake shows here
};

class ModelGolden : public ::testing::TestWithParam<const char*> {
 protected:
  Session session(int chunk_tokens) {
    // Blocks and a window so small that the texts fill several blocks of the store and leave some in the tail.
    return Session(model, arena, {.cache = {.block_tokens = 16, .window = 8}, .chunk_tokens = chunk_tokens});
  }

  // `logits` are those of positions [first, first + logits.size() / vocab).
  void expect_golden(const std::vector<float>& logits, std::size_t first) const {
    ASSERT_LE(first * golden.vocab + logits.size(), golden.logits.size());
    double sum = 0;
    double largest = 0;
    std::size_t worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double error = std::fabs(logits[i] - golden.logits[first * golden.vocab + i]);
      ASSERT_FALSE(std::isnan(error)) << "position " << first + i / golden.vocab;
      sum += error * error;
      if (error > largest) worst = i;
      largest = std::max(largest, error);
    }
    EXPECT_LE(largest, golden.largest) << "position " << first + worst / golden.vocab << ", token "
                                       << worst % golden.vocab;
    if (logits.size() == golden.logits.size()) {
      EXPECT_LE(std::sqrt(sum / static_cast<double>(logits.size())), golden.rms);
    }
  }

  std::filesystem::path folder = goldens / GetParam();
  Golden golden{folder};
  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{folder, *backend};

  void SetUp() override { model.expect_positions(static_cast<std::int64_t>(golden.tokens.size())); }
};

TEST_P(ModelGolden, EveryPositionInOneChunk) {
  expect_golden(session(1000).score(golden.tokens), 0);
}

TEST_P(ModelGolden, EveryPositionInChunksOfAnySize) {
  for (const int chunk : {1, 5, 16, 33}) {
    SCOPED_TRACE(chunk);
    expect_golden(session(chunk).score(golden.tokens), 0);
  }
}

TEST_P(ModelGolden, TokenByTokenFromTheStart) {
  Session decoding = session(1);
  std::vector<float> logits;
  for (const std::int32_t token : golden.tokens) {
    const std::vector<float> next = decoding.step(token);
    logits.insert(logits.end(), next.begin(), next.end());
  }
  expect_golden(logits, 0);
}

TEST_P(ModelGolden, DecodingAfterAPrefillOfAnyLength) {
  const std::span<const std::int32_t> tokens(golden.tokens);
  for (const int prefill : {1, 31, 64, 93}) {
    for (const int chunk : {7, 40}) {
      SCOPED_TRACE(::testing::Message() << prefill << " tokens in chunks of " << chunk);
      Session decoding = session(chunk);
      const std::size_t first = static_cast<std::size_t>(prefill);
      decoding.append(tokens.first(first));
      for (std::size_t t = first; t < tokens.size(); ++t) expect_golden(decoding.step(tokens[t]), t);
    }
  }
}

// More than are multiplied with a matrix at once, each of another length; matrices as they are, and packed.
TEST_P(ModelGolden, OfSequencesTogetherEachAsAloneToTheBit) {
  for (const WeightForm form : {WeightForm::stored, WeightForm::q8, WeightForm::q4}) {
    const Model of(folder, *backend, form);
    std::vector<Session> together, alone;
    for (auto* sessions : {&together, &alone}) {
      for (std::size_t i = 0; i < 11; ++i) {
        Session& session =
            sessions->emplace_back(of, arena, SessionOptions{.cache = {.block_tokens = 16, .window = 8}});
        session.append(std::span(golden.tokens).first(3 + 5 * i));
      }
    }
    for (std::size_t at = 0; at < 20; ++at) {
      const std::size_t now = 11 - at % 4;  // how many there are
      std::vector<Session::Step> steps(now);
      for (std::size_t i = 0; i < now; ++i) {
        steps[i].session = &together[i];
        steps[i].token = golden.tokens[at + i];
      }
      Session::step_together(steps);
      for (std::size_t i = 0; i < now; ++i) {
        ASSERT_FALSE(steps[i].failure) << i;
        ASSERT_EQ(steps[i].logits, alone[i].step(golden.tokens[at + i])) << name(form) << ", " << i << ", step " << at;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ModelGolden,
                         ::testing::Values("llama", "llama-llama3", "llama-linear-sharded", "mistral-sliding", "qwen2",
                                           "qwen2-sliding", "qwen3", "smollm3", "gemma3", "gemma3-older", "phi3",
                                           "phi3-short", "ministral3", "ministral3-dynamic", "granite", "olmo2",
                                           "qwen2-yarn", "llama-yarn", "llama-dynamic", "qwen3_5", "qwen3_5-listed",
                                           "qwen2_moe", "qwen3_moe", "qwen3_moe-dense", "mixtral", "olmoe",
                                           "granitemoe", "qwen3_5_moe", "gpt_oss", "gpt_oss-mxfp4", "gemma4",
                                           "gemma4-moe"),
                         test::by_value);

}  // namespace
}  // namespace hayloft::runtime
