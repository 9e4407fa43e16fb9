#include "runtime/fidelity/attention_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "offload/error.h"
#include "tests/runtime/fidelity/audit_fixture.h"
#include "tests/support/parameter_name.h"
#include "tests/support/sparq_oracle.h"

namespace hayloft::runtime {
namespace {

using hayloft::testing::TinyRun;

constexpr int rank = 3;
constexpr std::int64_t k = 12;

// The same statistics for r = 3 and k = 12, by enumeration in double precision.
class BruteForce : public StepObserver {
 public:
  bool wants(int, std::int64_t) override { return true; }
  void see(const Step& step, const Method&) override {
    LayerAttention& layer = layers[step.at.layer];
    const int d = step.at.cache.head_dim;
    const int g = step.at.query_heads / step.at.cache.kv_heads;
    const auto tokens = static_cast<std::size_t>(step.at.cache.tokens());
    std::vector<std::set<std::int64_t>> columns;
    std::vector<std::set<std::int64_t>> positions;
    for (int head = 0; head < step.at.cache.kv_heads; ++head) {
      const float* const q = step.q + head * g * d;
      const std::vector<int> chosen = hayloft::testing::sparq_oracle_components(q, g, d, rank);
      std::vector<double> exact(tokens);
      std::vector<double> approximate(tokens);
      for (int h = 0; h < g; ++h) {
        const auto weights = hayloft::testing::exact_weights(step.at.cache, step.at.query_heads, step.q, head * g + h);
        add_distribution(weights, layer);
        layer.kurtosis.add(kurtosis(q + h * d, d));
        const double tau = hayloft::testing::sparq_oracle_temperature(q + h * d, d, chosen);
        std::vector<double> guess(tokens);
        double sum = 0;
        for (std::size_t t = 0; t < tokens; ++t) {
          const f16* const key = hayloft::testing::row_of(step.at.cache, head, static_cast<std::int64_t>(t));
          double logit = 0;
          for (const int i : chosen) logit += double{q[h * d + i]} * to_float(key[i]);
          sum += guess[t] = std::exp(logit / tau);
        }
        for (std::size_t t = 0; t < tokens; ++t) {
          exact[t] += weights[t];
          approximate[t] += guess[t] / sum;
        }
      }
      columns.emplace_back(chosen.begin(), chosen.end());
      positions.push_back(top(exact));
      layer.agreement[{rank, k}].add(share(top(exact), top(approximate)));
    }
    auto& [before_columns, before_positions] = before_[step.at.layer];
    for (std::size_t head = 0; head < before_columns.size(); ++head) {
      layer.columns_again[rank].add(share(columns[head], before_columns[head]));
      layer.positions_again[k].add(share(positions[head], before_positions[head]));
    }
    before_columns = columns;
    before_positions = positions;
  }

  std::map<int, LayerAttention> layers;

 private:
  using Sets = std::vector<std::set<std::int64_t>>;

  static std::set<std::int64_t> top(const std::vector<double>& weights) {
    const auto order = hayloft::testing::by_weight(weights);
    return {order.begin(), order.begin() + k};
  }
  static double share(const std::set<std::int64_t>& now, const std::set<std::int64_t>& before) {
    const auto common = std::count_if(now.begin(), now.end(), [&](std::int64_t x) { return before.count(x) > 0; });
    return static_cast<double>(common) / static_cast<double>(now.size());
  }
  static void add_distribution(std::vector<double> weights, LayerAttention& layer) {
    double entropy = 0;
    for (const double p : weights) entropy -= p * std::log(p);
    layer.entropy.add(entropy);
    std::sort(weights.begin(), weights.end(), std::greater<>());
    for (int i = 0; i < 3; ++i) {
      double held = 0;
      int n = 0;
      while (held < LayerAttention::shares[i]) held += weights[static_cast<std::size_t>(n++)];
      layer.keys[i].add(n);
    }
    layer.top_mass[k].add(std::accumulate(weights.begin(), weights.begin() + k, 0.0));
  }
  static double kurtosis(const float* q, int d) {
    const double mean = std::accumulate(q, q + d, 0.0) / d;
    double m2 = 0;
    double m4 = 0;
    for (int i = 0; i < d; ++i) {
      m2 += std::pow(q[i] - mean, 2) / d;
      m4 += std::pow(q[i] - mean, 4) / d;
    }
    return m4 / (m2 * m2);
  }

  std::map<int, std::pair<Sets, Sets>> before_;
};

void expect_equal(const RunningStats& got, const RunningStats& want, double tolerance, const char* name) {
  EXPECT_EQ(got.count, want.count) << name;
  EXPECT_NEAR(got.mean(), want.mean(), tolerance) << name;
  EXPECT_NEAR(got.min, want.min, tolerance) << name;
  EXPECT_NEAR(got.max, want.max, tolerance) << name;
}

class AttentionStatsFigures : public ::testing::TestWithParam<const char*> {};

TEST_P(AttentionStatsFigures, AreThoseOfABruteForceComputation) {
  TinyRun run(GetParam());
  const auto expected = std::make_shared<BruteForce>();
  AttentionStatsOptions options;
  options.ranks = {rank};
  options.ks = {k};
  const auto stats = std::make_shared<AttentionStats>(options);
  run.session.add_observer(expected);
  run.session.add_observer(stats);
  run.decode(run.session, "sparq:r=2:k=40", 20);
  EXPECT_EQ(stats->report().steps, 20);
  EXPECT_EQ(stats->report().tokens, TinyRun::context + 20);
  ASSERT_EQ(stats->report().layers.size(), expected->layers.size());
  for (const auto& [number, want] : expected->layers) {
    SCOPED_TRACE(number);
    const LayerAttention& got = stats->report().layers.at(number);
    // Logits are off by less than 2.3e-5 (see the audit's test), a weight by twice that of itself, and the entropy is a
    // mean of the logarithms of weights: of numbers below 6 or so.
    expect_equal(got.entropy, want.entropy, 3e-4, "entropy");
    expect_equal(got.top_mass.at(k), want.top_mass.at(k), 5e-5, "mass of the top k");
    expect_equal(got.kurtosis, want.kurtosis, 1e-6, "kurtosis");
    // Counts: the seed holds no tie that rounding could decide.
    for (int i = 0; i < 3; ++i) expect_equal(got.keys[i], want.keys[i], 1e-12, "keys");
    expect_equal(got.agreement.at({rank, k}), want.agreement.at({rank, k}), 1e-12, "agreement");
    expect_equal(got.columns_again.at(rank), want.columns_again.at(rank), 1e-12, "columns again");
    expect_equal(got.positions_again.at(k), want.positions_again.at(k), 1e-12, "positions again");
  }
}

// Three, one and two query heads a KV head, and sliding windows between the global layers.
INSTANTIATE_TEST_SUITE_P(Models, AttentionStatsFigures,
                         ::testing::Values("llama", "llama-linear-sharded", "llama-llama3", "smollm3"), test::by_value);

TEST(AttentionStats, OfAllColumnsAgreeFullyAndIntegersLessThanSixteenBits) {
  double agreement[2];
  for (const auto columns : {offload::ColumnFormat::f16, offload::ColumnFormat::int4}) {
    TinyRun run("llama", columns);
    AttentionStatsOptions options;
    options.ranks = {1000};  // held to d
    options.ks = {k};
    const auto stats = std::make_shared<AttentionStats>(options);
    run.session.add_observer(stats);
    run.decode(run.session, "dense", 4);
    const int d = run.model.config().head_dim;
    const LayerAttention& layer = stats->report().layers.at(0);
    agreement[columns == offload::ColumnFormat::int4] = layer.agreement.at({d, k}).mean();
    EXPECT_EQ(layer.columns_again.at(d).mean(), 1);
  }
  EXPECT_EQ(agreement[0], 1);
  EXPECT_LT(agreement[1], 1);
  EXPECT_GT(agreement[1], 0.5);
}

// If columns are all read at every step, those that were kept first stay.
TEST(AttentionStats, SayWhatADeviceWouldHaveHadFromTheSeventeenthStepOn) {
  TinyRun run("llama");
  const int d = run.model.config().head_dim;
  AttentionStatsOptions options;
  options.ks = {k};
  options.ranks = {d};
  const auto stats = std::make_shared<AttentionStats>(options);
  run.session.add_observer(stats);
  run.decode(run.session, "dense", LayerAttention::warm);
  EXPECT_TRUE(stats->report().layers.at(0).columns_held.empty());
  run.decode(run.session, "dense", 2);
  for (const auto& [layer, attention] : stats->report().layers) {
    ASSERT_EQ(attention.columns_held.size(), 5u);
    for (const int eighths : {1, 2, 3, 4, 6}) {
      EXPECT_EQ(attention.columns_held.at({d, d * eighths / 8}).mean(), eighths / 8.0) << "layer " << layer;
    }
  }
}

// Writes down which experts tokens go through.
class SeenExperts : public StepObserver {
 public:
  struct Choice {
    int layer;
    std::int64_t position;
    int of;
    std::vector<int> experts;
    bool operator==(const Choice&) const = default;
  };
  bool wants(int, std::int64_t) override { return false; }
  void see(const Step&, const Method&) override {}
  void see_experts(int layer, std::int64_t position, int of, std::span<const int> chosen) override {
    choices.push_back({layer, position, of, {chosen.begin(), chosen.end()}});
  }
  std::vector<Choice> choices;
};

class ExpertsSeen : public ::testing::TestWithParam<const char*> {};

TEST_P(ExpertsSeen, AreThoseOfEachTokenAloneAndTogether) {
  TinyRun run(GetParam());
  const Experts& experts = run.model.config().experts;
  std::vector<SeenExperts::Choice> seen[2];
  for (const bool together : {false, true}) {
    Session forks[] = {run.session.fork(), run.session.fork()};
    std::vector<std::shared_ptr<SeenExperts>> observers;
    std::vector<Session::Step> steps;
    for (Session& fork : forks) {
      fork.add_observer(observers.emplace_back(std::make_shared<SeenExperts>()));
      steps.emplace_back().session = &fork;
      steps.back().token = static_cast<std::int32_t>(steps.size());
      if (!together) fork.step(steps.back().token);
    }
    if (together) Session::step_together(steps);
    for (const auto& observer : observers) {
      seen[together].insert(seen[together].end(), observer->choices.begin(), observer->choices.end());
    }
  }
  ASSERT_EQ(seen[0].size(), seen[1].size());
  EXPECT_TRUE(seen[0] == seen[1]);
  ASSERT_FALSE(seen[0].empty());
  for (const SeenExperts::Choice& choice : seen[0]) {
    EXPECT_TRUE(experts.in(choice.layer));
    EXPECT_EQ(choice.position, TinyRun::context);
    EXPECT_EQ(choice.of, experts.count);
    EXPECT_EQ(std::ssize(choice.experts), experts.used);
    EXPECT_TRUE(std::ranges::is_sorted(choice.experts));
  }
}

TEST_P(ExpertsSeen, AreCountedAsADeviceWouldKeepThem) {
  TinyRun run(GetParam());
  const auto seen = std::make_shared<SeenExperts>();
  const auto stats = std::make_shared<AttentionStats>();
  run.session.add_observer(seen);
  run.session.add_observer(stats);
  const int steps = 40;
  run.decode(run.session, "dense", steps);
  const Experts& experts = run.model.config().experts;
  std::map<std::pair<int, int>, KeptExperts> kept;
  std::map<std::pair<int, int>, RunningStats> held;
  for (const SeenExperts::Choice& choice : seen->choices) {
    for (const int slots : {experts.count / 8, experts.count / 4, experts.count / 2, experts.count * 3 / 4}) {
      if (slots == 0) continue;
      const std::pair key(choice.layer, slots);
      const int had = kept.try_emplace(key, experts.count, slots).first->second.ask(choice.experts);
      if (choice.position >= TinyRun::context + LayerAttention::warm) held[key].add(double{1} * had / experts.used);
    }
  }
  std::size_t shares = 0;
  for (const auto& [layer, of_layer] : stats->report().experts) {
    EXPECT_EQ(of_layer.count, experts.count);
    shares += of_layer.held.size();
    for (const auto& [slots, share] : of_layer.held) {
      expect_equal(share, held.at({layer, slots}), 1e-12, "experts held");
      EXPECT_EQ(share.count, steps - LayerAttention::warm);
    }
  }
  EXPECT_EQ(shares, held.size());
  EXPECT_GT(shares, 0u);
  const auto json = nlohmann::json::parse(attention_json(stats->report()));
  EXPECT_EQ(json.at("experts").size(), stats->report().experts.size());
  EXPECT_NE(attention_table(stats->report()).find("experts asked for"), std::string::npos);
}

// Mixtures in every layer, behind windows and global layers in turn, and behind recurrent layers.
INSTANTIATE_TEST_SUITE_P(Models, ExpertsSeen, ::testing::Values("olmoe", "gpt_oss", "qwen3_5_moe"), test::by_value);

TEST(AttentionStats, LookAtTheFirstStepsOfEachSequenceAndCompareWithinItOnly) {
  TinyRun run("llama");
  AttentionStatsOptions options;
  options.ks = {k};
  options.steps = 3;
  const auto stats = std::make_shared<AttentionStats>(options);
  for (int i = 0; i < 2; ++i) {
    Session fork = run.session.fork();
    fork.add_observer(stats);
    run.decode(fork, "dense", 5);
  }
  EXPECT_EQ(stats->report().steps, 6);
  const LayerAttention& layer = stats->report().layers.at(1);
  EXPECT_EQ(layer.entropy.count, 6 * run.model.config().query_heads);
  EXPECT_EQ(layer.positions_again.at(k).count, 2 * 2 * run.model.config().kv_heads);
}

TEST(AttentionStats, ChangeNothingThatIsDecoded) {
  TinyRun run("smollm3");
  Session plain = run.session.fork();
  Session watched = run.session.fork();
  watched.add_observer(std::make_shared<AttentionStats>());
  EXPECT_EQ(run.decode(watched, "sparq:r=2:k=24", 6), run.decode(plain, "sparq:r=2:k=24", 6));
}

TEST(AttentionStats, AreWrittenAsJsonAndAsATable) {
  TinyRun run("llama");
  const auto stats = std::make_shared<AttentionStats>();
  run.session.add_observer(stats);
  run.decode(run.session, "dense", 2);
  const auto json = nlohmann::json::parse(attention_json(stats->report()));
  EXPECT_EQ(json["schema"], "hayloft.attention/1");
  EXPECT_EQ(json["steps"], 2);
  ASSERT_EQ(json["layers"].size(), 3u);
  EXPECT_EQ(json["layers"][2]["layer"], 2);
  EXPECT_EQ(json["layers"][2]["keys"][1]["share"], 0.5);
  EXPECT_EQ(json["layers"][0]["agreement"].size(), 12u);  // three ranks, four k
  EXPECT_NE(attention_table(stats->report()).find("| layer | entropy"), std::string::npos);
}

TEST(AttentionStats, RefuseNothingToLookFor) {
  AttentionStatsOptions options;
  options.ks = {};
  EXPECT_THROW(AttentionStats{options}, Error);
  options.ks = {0};
  EXPECT_THROW(AttentionStats{options}, Error);
}

}  // namespace
}  // namespace hayloft::runtime
