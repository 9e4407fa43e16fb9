// What is done to logits before a token is drawn, and the probabilities it is drawn with, as Hugging Face transformers
// has them: recorded by scripts/make-sampling-goldens.py.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/decode/sampler.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;

const json& sampling_goldens() {
  static const json all =
      json::parse(std::ifstream(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/sampling.json"));
  return all;
}

// Names are those of SamplerOptions and LogitRules.
SamplerOptions options_of(const json& config) {
  SamplerOptions options{.temperature = config.value("temperature", 1.0f),
                         .top_k = config.value("top_k", 0),
                         .top_p = config.value("top_p", 1.0f),
                         .min_p = config.value("min_p", 0.0f),
                         .seed = 5};
  options.typical_p = config.value("typical_p", 1.0f);
  options.epsilon_cutoff = config.value("epsilon_cutoff", 0.0f);
  options.eta_cutoff = config.value("eta_cutoff", 0.0f);
  LogitRules& rules = options.rules;
  rules.repetition_penalty = config.value("repetition_penalty", 1.0f);
  rules.no_repeat_ngram_size = config.value("no_repeat_ngram_size", 0);
  rules.min_new_tokens = config.value("min_new_tokens", 0);
  rules.min_length = config.value("min_length", 0);
  rules.suppress_tokens = config.value("suppress_tokens", rules.suppress_tokens);
  rules.begin_suppress_tokens = config.value("begin_suppress_tokens", rules.begin_suppress_tokens);
  rules.bad_words_ids = config.value("bad_words_ids", rules.bad_words_ids);
  rules.end_tokens = sampling_goldens().at("end_tokens").get<std::vector<std::int32_t>>();
  return options;
}

TEST(SamplerGolden, RulesLeaveOfLogitsWhatTransformersLeaves) {
  for (const json& golden : sampling_goldens().at("edited")) {
    SCOPED_TRACE(golden.at("config").dump() + golden.at("answer").dump());
    LogitEditor editor(options_of(golden.at("config")).rules);
    editor.read(golden.at("prompt").get<std::vector<std::int32_t>>());
    for (const json& token : golden.at("answer")) editor.drawn(token.get<std::int32_t>());
    auto logits = sampling_goldens().at("logits").get<std::vector<float>>();
    editor.apply(logits);
    for (std::size_t token = 0; token < logits.size(); ++token) {
      const json& score = golden.at("scores").at(token);
      if (score.is_null()) {
        EXPECT_EQ(logits[token], -INFINITY) << "token " << token;
      } else {
        EXPECT_EQ(logits[token], score.get<float>()) << "token " << token;  // one multiplication or division in f32
      }
    }
  }
}

// A sampler that has seen the answer: its tokens are drawn one by one from logits that leave no choice.
Sampler behind(const json& golden, const SamplerOptions& options) {
  Sampler sampler(options);
  auto tokens = golden.at("prompt").get<std::vector<std::int32_t>>();
  const auto answer = golden.at("answer").get<std::vector<std::int32_t>>();
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  sampler.read(tokens);
  return sampler;
}

TEST(SamplerGolden, TokensAreDrawnWithTheProbabilitiesOfTransformers) {
  constexpr int times = 20000;
  const auto logits = sampling_goldens().at("logits").get<std::vector<float>>();
  for (const json& golden : sampling_goldens().at("drawn")) {
    SCOPED_TRACE(golden.at("config").dump());
    std::vector<int> counts(logits.size());
    SamplerOptions options = options_of(golden.at("config"));
    for (int i = 0; i < times; ++i) {
      options.seed = static_cast<std::uint64_t>(i);
      ++counts[static_cast<std::size_t>(behind(golden, options).sample(logits))];
    }
    for (std::size_t token = 0; token < logits.size(); ++token) {
      const double p = golden.at("probabilities").at(token).get<double>();
      // Five standard deviations of a binomial count; the seeds are fixed, so this either always holds or never.
      EXPECT_NEAR(counts[token], p * times, 5 * std::sqrt(p * (1 - p) * times)) << "token " << token;
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime
