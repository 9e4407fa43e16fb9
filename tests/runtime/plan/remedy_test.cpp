#include "runtime/plan/remedy.h"

#include <gtest/gtest.h>

// Tests what is said of a plan that does not fit, held against plans that do.
namespace hayloft::runtime::plan {
namespace {

PlanRequest llama_3_8b(std::uint64_t host, std::uint64_t device) {
  PlanRequest request;
  request.config = config_of_shape({32, 32, 8, 128, 0, 0, 0});
  request.weights = weight_sizes(request.config, gpu::DType::f16);
  request.methods = {parse_method("dense", {}), parse_method("sparq", {})};
  request.tokens = 1 << 20;
  request.host_budget = host;
  request.available_bytes = std::uint64_t{1} << 40;
  request.device_budget = device;
  return request;
}

std::vector<OtherWeights> smaller_weights(const PlanRequest& request) {
  return {{"--weights q8", weight_sizes(request.config, gpu::DType::f16, WeightForm::q8), 32},
          {"--weights q4", weight_sizes(request.config, gpu::DType::f16, WeightForm::q4), 128}};
}

constexpr std::uint64_t GiB = std::uint64_t{1} << 30;

TEST(Remedies, TheLongestContextFitsAndOneTokenMoreDoesNot) {
  PlanRequest request = llama_3_8b(64 * GiB, 0);
  ASSERT_FALSE(fits(request));
  request.tokens = remedy(request, {}).longest_tokens;
  EXPECT_GT(request.tokens, 0);
  EXPECT_TRUE(fits(request));
  ++request.tokens;
  EXPECT_FALSE(fits(request));
}

TEST(Remedies, TheCheapestChangeIsOneThatFitsWhenItIsPlanned) {
  // 191 GiB as it is, 144.5 with integer columns, 82.8 with rows of 8 bits besides, 52.9 with those of 4.
  const auto change = [](std::uint64_t host) {
    const PlanRequest request = llama_3_8b(host, 0);
    return remedy(request, smaller_weights(request)).change;
  };
  EXPECT_EQ(change(170 * GiB), "--columns int8");
  EXPECT_EQ(change(150 * GiB), "--columns int4");
  EXPECT_EQ(change(90 * GiB), "--columns int4 --rows int8");
  EXPECT_EQ(change(60 * GiB), "--columns int4 --rows int4");
  EXPECT_EQ(change(40 * GiB), "");
}

TEST(Remedies, ADeviceIsHelpedBySmallerWeightsOrChunks) {
  PlanRequest request = llama_3_8b(200 * GiB, 12 * GiB);
  request.tokens = 1 << 17;
  const Remedy weights = remedy(request, smaller_weights(request));
  EXPECT_EQ(weights.longest_tokens, 0) << "no context makes the weights smaller";
  EXPECT_EQ(weights.change, "--weights q8");
  EXPECT_LE(weights.device_bytes, request.device_budget);
  request.device_budget = make_plan(request, nullptr).memory.device() - 1;
  EXPECT_EQ(remedy(request, smaller_weights(request)).change, "--batch 512");
}

TEST(Remedies, WhatAMethodCannotSearchIsNoneOfThem) {
  PlanRequest request = llama_3_8b(100 * GiB, 0);
  request.methods = {parse_method("planes", {})};
  request.session.cache.columns = offload::ColumnFormat::planes;
  ASSERT_FALSE(fits(request));
  EXPECT_EQ(remedy(request, {}).change, "--rows int8");
}

TEST(UsualBudget, IsNineTenthsOfWhatTheWeightsLeave) {
  PlanRequest request = llama_3_8b(0, 0);
  EXPECT_EQ(usual_host_budget(request), (request.available_bytes - request.weights.bytes) / 10 * 9);
  EXPECT_EQ(make_plan(request, nullptr).host_budget, usual_host_budget(request));
  request.device_budget = 24 * GiB;
  EXPECT_EQ(usual_host_budget(request), (request.available_bytes - request.weights.host_bytes) / 10 * 9);
  request.device_budget = 0;
  request.available_bytes = 1;
  EXPECT_EQ(usual_host_budget(request), 0u);
}

}  // namespace
}  // namespace hayloft::runtime::plan
