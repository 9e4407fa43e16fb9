#include "runtime/decode/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

using Logits = std::vector<float>;

std::map<std::int32_t, int> draw(const SamplerOptions& options, const Logits& logits, int times) {
  Sampler sampler(options);
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

// Logits whose softmax is `probabilities`.
Logits log_of(const std::vector<double>& probabilities) {
  Logits logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Sampler, TemperatureZeroTakesTheLargestLogit) {
  EXPECT_EQ(Sampler({}).sample(Logits{-1, 3, 2}), 1);
}

TEST(Sampler, EqualLogitsGoToTheSmallerToken) {
  EXPECT_EQ(Sampler({}).sample(Logits{1, 7, 7, 7}), 1);
  SamplerOptions options{.temperature = 1, .top_k = 1};
  EXPECT_EQ(draw(options, Logits{1, 7, 7, 7}, 50), (std::map<std::int32_t, int>{{1, 50}}));
}

TEST(Sampler, DrawsInProportionToTheSoftmax) {
  constexpr int times = 20000;
  const std::vector<double> probabilities{0.5, 0.3, 0.15, 0.05};
  auto counts = draw({.temperature = 1, .seed = 3}, log_of(probabilities), times);
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    // Five standard deviations of a binomial count; the seed is fixed, so this either always holds or never.
    const double p = probabilities[i];
    EXPECT_NEAR(counts[static_cast<std::int32_t>(i)], p * times, 5 * std::sqrt(p * (1 - p) * times)) << "token " << i;
  }
}

TEST(Sampler, TemperatureSharpensTheDistribution) {
  constexpr int times = 20000;
  auto counts = draw({.temperature = 0.5f, .seed = 4}, log_of({0.6, 0.4}), times);  // 0.6^2 : 0.4^2
  const double p = 0.36 / 0.52;
  EXPECT_NEAR(counts[0], p * times, 5 * std::sqrt(p * (1 - p) * times));
}

TEST(Sampler, TheWantedLargestGiveTheTokenThatAllWouldHaveGiven) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const SamplerOptions& options :
       {SamplerOptions{}, SamplerOptions{.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .seed = 6},
        SamplerOptions{.temperature = 2, .top_k = 5, .seed = 7}}) {
    Sampler of_all(options);
    Sampler of_some(options);
    for (int round = 0; round < 200; ++round) {
      Logits logits(500);
      for (float& x : logits) x = std::round(4 * normal(random)) / 2;  // with ties
      std::vector<std::int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
      order.resize(static_cast<std::size_t>(of_some.wanted()));
      std::sort(order.begin(), order.end());
      Candidates candidates{order, {}};
      for (const std::int32_t token : order) candidates.logits.push_back(logits[static_cast<std::size_t>(token)]);
      ASSERT_EQ(of_some.sample(candidates), of_all.sample(logits)) << "round " << round;
    }
  }
  EXPECT_EQ(Sampler({.temperature = 1}).wanted(), 0);
}

TEST(Sampler, EveryCandidateHasItsLogit) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplerOptions options;
    options.temperature = temperature;
    EXPECT_THROW(Sampler(options).sample(Candidates{{7}, {1, 2, 3}}), std::logic_error);
    EXPECT_THROW(Sampler(options).sample(Candidates{{}, {1, 2, 3}}), std::logic_error);
    EXPECT_THROW(Sampler(options).sample(Candidates{{7, 8}, {1}}), std::logic_error);
  }
}

TEST(Sampler, TopKKeepsTheKLikeliest) {
  auto counts = draw({.temperature = 1, .top_k = 2, .seed = 5}, log_of({0.1, 0.4, 0.2, 0.3}), 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[3], 0);
}

TEST(Sampler, TopPKeepsTheFewestTokensThatReachTheShare) {
  const Logits logits = log_of({0.1, 0.4, 0.2, 0.3});
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.35f}, logits, 1000).size(), 1u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.65f}, logits, 1000).size(), 2u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.85f}, logits, 1000).size(), 3u);
}

TEST(Sampler, TopPCountsTheShareOfWhatTopKLeft) {
  // After {0.4, 0.3} the first alone holds 0.57; over all four tokens it would hold only 0.4.
  EXPECT_EQ(draw({.temperature = 1, .top_k = 2, .top_p = 0.5f}, log_of({0.1, 0.4, 0.2, 0.3}), 1000).size(), 1u);
}

TEST(Sampler, MinPDropsWhatIsFarLessLikelyThanTheBest) {
  auto counts = draw({.temperature = 1, .min_p = 0.6f}, log_of({0.1, 0.4, 0.2, 0.3}), 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts.count(0) + counts.count(2), 0u);
}

TEST(Sampler, TheSameSeedGivesTheSameTokensOnEveryMachine) {
  const Logits logits = log_of({0.1, 0.4, 0.2, 0.3});
  Sampler sampler({.temperature = 1, .seed = 42});
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 8; ++i) tokens.push_back(sampler.sample(logits));
  // The C++ standard fixes the bits of mt19937_64. By falling probability the tokens are 1, 3, 2, 0, with cumulated
  // shares 0.4, 0.7, 0.9, 1.
  std::mt19937_64 random(42);
  for (int i = 0; i < 8; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    EXPECT_EQ(tokens[static_cast<std::size_t>(i)], u < 0.4 ? 1 : u < 0.7 ? 3 : u < 0.9 ? 2 : 0) << "draw " << i;
  }
}

// The definition, with all tokens sorted.
std::int32_t draw_by_sorting(const Logits& logits, const SamplerOptions& options, double u) {
  std::vector<std::pair<float, std::int32_t>> order;
  for (std::size_t i = 0; i < logits.size(); ++i) order.push_back({-logits[i], static_cast<std::int32_t>(i)});
  std::sort(order.begin(), order.end());
  std::vector<double> weights;
  for (const auto& [logit, token] : order) {
    weights.push_back(std::exp((static_cast<double>(order[0].first) - logit) / options.temperature));
  }
  const double whole = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t kept = 0;
  double sum = 0;
  while (kept < weights.size() && sum < options.top_p * whole && weights[kept] >= options.min_p) sum += weights[kept++];
  double left = u * sum;
  for (std::size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i].second;
  }
  return order[kept - 1].second;
}

TEST(Sampler, OfManyTokensDrawsWhatItWouldIfAllWereSorted) {
  // From a few candidates to all, in steep and in flat distributions. Sums in other orders differ by 1e-12 of
  // themselves at most, so that the chance of any difference in these draws is about 1e-9.
  std::mt19937 normal_bits(3);
  std::normal_distribution<float> normal(0, 2);
  Logits logits(20000);
  for (float& x : logits) x = normal(normal_bits);
  for (const SamplerOptions& options :
       {SamplerOptions{.temperature = 1}, SamplerOptions{.temperature = 0.3f}, SamplerOptions{.temperature = 5},
        SamplerOptions{.temperature = 1, .top_p = 0.5f}, SamplerOptions{.temperature = 3, .top_p = 0.99f},
        SamplerOptions{.temperature = 1, .min_p = 0.01f},
        SamplerOptions{.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f}}) {
    Sampler sampler(options);
    std::mt19937_64 random(options.seed);
    for (int i = 0; i < 20; ++i) {
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      ASSERT_EQ(sampler.sample(logits), draw_by_sorting(logits, options, u))
          << options.temperature << " " << options.top_p << " " << options.min_p << ", draw " << i;
    }
  }
}

Sampler behind(const LogitRules& rules, const std::vector<std::int32_t>& prompt) {
  Sampler sampler({.rules = rules});
  sampler.read(prompt);
  return sampler;
}

TEST(SamplerRules, GoOnFromWhatTheSamplerHasPicked) {
  const Logits logits{1, 4, 3, 2};
  Sampler sampler({.rules = {.no_repeat_ngram_size = 1}});
  EXPECT_EQ(sampler.sample(logits), 1);
  EXPECT_EQ(sampler.sample(logits), 2);
  EXPECT_EQ(sampler.sample(logits), 3);
}

// OpenAI's equation: the logit, less the count of the token in the answer times frequency_penalty, less
// presence_penalty where it is there. The prompt does not count.
TEST(SamplerRules, FrequencyAndPresenceArePenalisedByTheAnswerAlone) {
  LogitEditor editor({.frequency_penalty = 0.5f, .presence_penalty = 0.25f});
  editor.read(std::vector<std::int32_t>{0, 0, 0});
  for (const std::int32_t token : {1, 2, 1}) editor.drawn(token);
  Logits logits{4, 4, 4, 4};
  editor.apply(logits);
  EXPECT_EQ(logits, (Logits{4, 2.75f, 3.25f, 4}));
}

TEST(SamplerRules, BiasIsAddedBeforePenaltiesAndForbidsByMinusInfinity) {
  EXPECT_EQ(behind({.logit_bias = {{0, 5.0f}}}, {}).sample(Logits{1, 4, 3}), 0);
  EXPECT_EQ(behind({.logit_bias = {{1, -INFINITY}}}, {}).sample(Logits{1, 4, 3}), 2);
  LogitEditor editor({.repetition_penalty = 2, .logit_bias = {{0, 2.0f}}});
  editor.read(std::vector<std::int32_t>{0});
  Logits logits{1, 1};
  editor.apply(logits);
  EXPECT_EQ(logits, (Logits{1.5f, 1}));
}

TEST(SamplerRules, RepetitionCountsTheNewestTokensOfItsWindow) {
  const LogitRules rules{.repetition_penalty = 4, .repetition_window = 2};
  EXPECT_EQ(behind(rules, {1, 0, 0}).sample(Logits{2, 4, 3}), 1);  // 1 is out of the window again
  EXPECT_EQ(behind(rules, {0, 1, 0}).sample(Logits{2, 4, 3}), 2);
  EXPECT_EQ(behind(rules, {1, 1, 0}).sample(Logits{2, 4, 3}), 2);  // one of two is
}

TEST(SamplerRules, AllLogitsAreWantedWhereThereAreSome) {
  EXPECT_EQ(Sampler({.rules = {.suppress_tokens = {1}}}).wanted(), 0);
  EXPECT_EQ(Sampler({.temperature = 1, .top_k = 4, .rules = {.repetition_penalty = 1.1f}}).wanted(), 0);
  EXPECT_EQ(Sampler({.rules = {}}).wanted(), 1);
}

TEST(SamplerRules, LogitsOfTheCallerStayAsTheyAre) {
  const Logits logits{1, 4, 3};
  Logits given = logits;
  EXPECT_EQ(behind({.suppress_tokens = {1}}, {}).sample(given), 2);
  EXPECT_EQ(given, logits);
}

TEST(SamplerRules, AreRefusedByNameWhenNoTokenIsLeft) {
  const LogitRules rules{.suppress_tokens = {0, 1}};
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature, .rules = rules});
    EXPECT_THROW(sampler.sample(Logits{1, 2}), Error);
  }
}

TEST(SamplerRules, AreRefusedByNameOutsideTheVocabulary) {
  const auto message = [](const LogitRules& rules) {
    try {
      rules.require_within(10);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({.suppress_tokens = {0, 9}}), "accepted");
  EXPECT_EQ(message({.suppress_tokens = {10}}), "suppress_tokens has the token 10, but the model's are 0 to 9");
  EXPECT_NE(message({.logit_bias = {{-1, 1.0f}}}).find("logit_bias"), std::string::npos);
  EXPECT_NE(message({.bad_words_ids = {{3, 12}}}).find("bad_words_ids"), std::string::npos);
  EXPECT_NE(message({.begin_suppress_tokens = {12}}).find("begin_suppress_tokens"), std::string::npos);
}

TEST(Sampler, RefusesLogitsThatLeaveNothingToDrawBy) {
  for (const float temperature : {0.0f, 1.0f}) {
    EXPECT_THROW(Sampler({.temperature = temperature}).sample(Logits{NAN, 1}), Error) << temperature;
  }
  for (const Logits& logits : {Logits{1, NAN}, Logits{1, INFINITY, 2}, Logits{-INFINITY, -INFINITY}}) {
    EXPECT_THROW(Sampler({.temperature = 1}).sample(logits), Error) << logits[0] << " " << logits[1];
    EXPECT_THROW(Sampler({.temperature = 1, .top_k = 2}).sample(logits), Error) << logits[0] << " " << logits[1];
  }
  EXPECT_EQ(Sampler({.temperature = 1}).sample(Logits{-INFINITY, 1}), 1);
}

TEST(Sampler, RefusesOptionsOutOfRangeByName) {
  const auto message = [](const SamplerOptions& options) {
    try {
      Sampler sampler(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message({.temperature = -1}).find("--temp"), std::string::npos);
  EXPECT_NE(message({.temperature = NAN}).find("--temp"), std::string::npos);
  EXPECT_NE(message({.top_k = -2}).find("--top-k"), std::string::npos);
  EXPECT_NE(message({.top_p = 0}).find("--top-p"), std::string::npos);
  EXPECT_NE(message({.top_p = 1.5f}).find("--top-p"), std::string::npos);
  EXPECT_NE(message({.min_p = -0.1f}).find("--min-p"), std::string::npos);
  EXPECT_NE(message({.typical_p = 0}).find("typical_p"), std::string::npos);
  EXPECT_NE(message({.eta_cutoff = 1}).find("eta_cutoff"), std::string::npos);
  EXPECT_NE(message({.rules = {.repetition_penalty = 0}}).find("repetition_penalty"), std::string::npos);
  EXPECT_NE(message({.rules = {.logit_bias = {{1, NAN}}}}).find("logit_bias of token 1"), std::string::npos);
  EXPECT_NE(message({.rules = {.bad_words_ids = {{}}}}).find("bad_words_ids"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime
