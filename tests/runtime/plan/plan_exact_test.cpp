#include "runtime/plan/plan_exact.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "runtime/decode/draft_length.h"
#include "tests/runtime/plan/planned.h"

// Exact decoding of several tokens a pass, planned from a share of accepted drafts.
namespace hayloft::runtime::plan {
namespace {

PlanRequest with_drafts(double accepted) {
  PlanRequest request = llama_3_8b();
  request.tokens = 128 << 10;
  request.device_budget = std::uint64_t{24} << 30;
  request.device_cache = {0, 0};
  request.methods = {parse_method("dense", {}), parse_method("sparq:r=16:k=512", {})};
  request.card = GpuCard{36, 2.57, 448, 25};
  request.accepted = accepted;
  return request;
}

double ms_of(const std::vector<PredictedStage>& stages) {
  double ms = 0;
  for (const PredictedStage& stage : stages) ms += stage.ms;
  return ms;
}

TEST(PlanExactTest, APassBringsTheContextOnceForAllItsTokens) {
  const Plan plan = make_plan(with_drafts(0.9), nullptr);
  ASSERT_EQ(plan.exact.size(), 3U);  // `dense` drafts nothing sooner
  const PlannedExact &none = plan.exact[0], &lookup = plan.exact[1], &self = plan.exact[2];
  const auto link = [&](int method) {
    return static_cast<double>(plan.methods[static_cast<std::size_t>(method)].counters.total(Place::link));
  };
  EXPECT_EQ(none.drafts, "none");
  EXPECT_EQ(none.tokens, 1);
  EXPECT_EQ(static_cast<double>(none.link_bytes), link(0));
  EXPECT_DOUBLE_EQ(*none.card_ms, ms_of(plan.methods[0].predicted));
  EXPECT_GT(lookup.drafted, 3);
  EXPECT_NEAR(lookup.tokens, (1 - std::pow(0.9, lookup.drafted + 1)) / 0.1, 1e-12);
  EXPECT_NEAR(static_cast<double>(lookup.link_bytes), link(0) / lookup.tokens, 1);
  EXPECT_EQ(self.drafts, "self, by sparq r=16 k=512");
  EXPECT_NEAR(static_cast<double>(self.link_bytes), (link(0) + self.drafted * link(1)) / self.tokens, 1);
  // Time: no less than what the link takes, and a draft is what a step by the method is.
  EXPECT_GT(*lookup.card_ms, link(0) / 25e6 / lookup.tokens);
  EXPECT_LT(*lookup.card_ms, *none.card_ms / 3);
  ASSERT_EQ(self.drafted, lookup.drafted);
  EXPECT_NEAR(*self.card_ms - *lookup.card_ms, self.drafted * ms_of(plan.methods[1].predicted) / self.tokens, 1e-9);
}

TEST(PlanExactTest, WithoutAcceptedDraftsNoneAreMade) {
  const Plan plan = make_plan(with_drafts(0), nullptr);
  for (const PlannedExact& exact : plan.exact) {
    EXPECT_EQ(exact.drafted, 0) << exact.drafts;
    EXPECT_EQ(exact.link_bytes, plan.exact[0].link_bytes);
    EXPECT_EQ(*exact.card_ms, *plan.exact[0].card_ms);
  }
  EXPECT_THROW(make_plan(with_drafts(1.5), nullptr), Error);
  PlanRequest without = with_drafts(0);
  without.accepted.reset();
  EXPECT_TRUE(make_plan(without, nullptr).exact.empty());
}

TEST(PlanExactTest, APassReadsTheExpertsOfAllItsTokens) {
  ModelConfig config = config_of_shape({.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 32});
  config.experts.count = 10, config.experts.used = 4, config.experts.inner = 64;
  const WeightSizes sizes = weight_sizes(config, gpu::DType::f16);
  const std::uint64_t expert = 2 * 3 * 64 * static_cast<std::uint64_t>(config.hidden_size);  // f16: gate, up, down
  EXPECT_EQ(sizes.bytes_per_pass(1), sizes.bytes_per_step);
  const auto further = [&](int T) { return static_cast<double>(sizes.bytes_per_pass(T) - sizes.bytes_per_step); };
  constexpr double rounded = 1.5 * 2 * 10 * 3;  // less than a byte of each matrix for each token's worth
  EXPECT_NEAR(further(2), 2.0 * 4 * static_cast<double>(expert), rounded);
  EXPECT_NEAR(further(3), 2.0 * 6 * static_cast<double>(expert), rounded);  // all ten have been read
  EXPECT_EQ(sizes.bytes_per_pass(9), sizes.bytes_per_pass(3));
  config.experts = {};
  const WeightSizes dense = weight_sizes(config, gpu::DType::f16);
  EXPECT_EQ(dense.bytes_per_pass(9), dense.bytes_per_step);
}

TEST(PlanExactTest, AModelsHeadDraftsByOneLayerAndTheOutput) {
  PlanRequest request = with_drafts(0.8);
  EXPECT_FALSE(head_sizes(request.config, gpu::DType::f16));
  request.config.draft_layers = 1;
  request.head = head_sizes(request.config, gpu::DType::f16);
  ASSERT_TRUE(request.head);
  const auto hidden = static_cast<std::uint64_t>(request.config.hidden_size);
  ModelConfig layers = request.config;
  const std::uint64_t all = weight_sizes(layers, gpu::DType::f16).bytes_per_step;
  ++layers.layers;
  layers.sliding_window.push_back(0), layers.rope.push_back(true);
  const std::uint64_t layer = weight_sizes(layers, gpu::DType::f16).bytes_per_step - all;
  const std::uint64_t join = 2 * 2 * hidden * hidden;
  const std::uint64_t output = 2 * hidden * static_cast<std::uint64_t>(request.config.vocab_size);
  EXPECT_EQ(request.head->bytes_per_step, layer + join + output);
  EXPECT_NEAR(static_cast<double>(request.head->bytes), static_cast<double>(layer + join), 5 * 4.0 * hidden);  // norms

  const Plan plan = make_plan(request, nullptr);
  ASSERT_EQ(plan.exact.size(), 4U);
  const PlannedExact &none = plan.exact[0], &lookup = plan.exact[1], &mtp = plan.exact[3];
  EXPECT_EQ(mtp.drafts, "mtp");
  EXPECT_GT(mtp.drafted, 1);
  EXPECT_NEAR(static_cast<double>(mtp.link_bytes), static_cast<double>(none.link_bytes) / mtp.tokens, 1);
  // A draft reads the head's weights and 2,048 positions of one layer from the device's memory, at least.
  const double rows = 2048.0 * 4 * request.config.kv_heads * request.config.head_dim;
  EXPECT_GE(mtp.memory, request.head->bytes + static_cast<std::uint64_t>(rows));
  EXPECT_LT(mtp.memory, request.head->bytes + static_cast<std::uint64_t>(2 * rows));
  ASSERT_LE(mtp.drafted, lookup.drafted);
  const double draft = (static_cast<double>(request.head->bytes_per_step) + rows) / 448e6;
  EXPECT_GT(*mtp.card_ms, static_cast<double>(none.link_bytes) / 25e6 / mtp.tokens + mtp.drafted * draft / mtp.tokens);
  const std::string table = plan_table(plan);
  EXPECT_NE(table.find("`mtp` takes "), std::string::npos) << table;
}

TEST(PlanExactTest, TheReportHasARowForEachSourceOfDrafts) {
  const Plan plan = make_plan(with_drafts(0.9), nullptr);
  const std::string table = plan_table(plan);
  EXPECT_NE(table.find("`--exact` with drafts of which 90% are accepted, predicted:"), std::string::npos) << table;
  const auto exact = nlohmann::json::parse(plan_json({plan})).at("plans").at(0).at("exact");
  ASSERT_EQ(exact.size(), 3U);
  EXPECT_EQ(exact[1].at("draft"), "lookup");
  EXPECT_EQ(exact[1].at("tokens_per_pass"), plan.exact[1].tokens);
  EXPECT_TRUE(exact[1].at("ms_per_token").is_null());  // without a profile
}

}  // namespace
}  // namespace hayloft::runtime::plan
