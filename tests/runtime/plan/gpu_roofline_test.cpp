#include "runtime/plan/gpu_roofline.h"

#include <gtest/gtest.h>

#include <string>

#include "offload/error.h"
#include "runtime/plan/plan.h"

namespace hayloft::runtime::plan {
namespace {

constexpr std::int64_t stored = std::int64_t{1} << 20;
constexpr GpuCard small_card{34, 2.5, 448, 27.2};

class GpuRooflineTest : public ::testing::Test {
 protected:
  DecodeStep step(const char* method) {
    DecodeStep step;
    step.config = &config;
    step.weight_bytes = std::uint64_t{15} << 30;
    step.method = parse_method(method, {});
    step.stored = stored;
    return step;
  }
  static double ms_of(const std::vector<PredictedStage>& stages, const std::string& name) {
    for (const PredictedStage& stage : stages) {
      if (stage.stage == name) return stage.ms;
    }
    ADD_FAILURE() << "no stage " << name;
    return 0;
  }

  ModelConfig config = config_of_shape({.layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128});
};

TEST_F(GpuRooflineTest, WhatTheLinkBringsTakesItsBytesOverItsRate) {
  const auto stages = predict_stages(step("sparq"), small_card);
  const double bytes = 32.0 * 8 * 16 * 2 * static_cast<double>(stored);  // layers, KV heads, r, f16
  EXPECT_NEAR(ms_of(stages, "column scan"), bytes / 27.2e6, 1e-9);
  GpuCard half = small_card;
  half.link_rate /= 2;
  EXPECT_NEAR(ms_of(predict_stages(step("sparq"), half), "column scan"), 2 * bytes / 27.2e6, 1e-9);
  EXPECT_NEAR(ms_of(stages, "weights"), static_cast<double>(std::uint64_t{15} << 30) / 448e6, 1e-9);
}

TEST_F(GpuRooflineTest, PlanesTakeTheBytesOfTheirBitsAndRanges) {
  for (const int bits : {16, 32, 64}) {
    DecodeStep planes = step(("planes:bits=" + std::to_string(bits)).c_str());
    planes.columns = offload::ColumnFormat::planes;
    const double ms = ms_of(predict_stages(planes, small_card), "column scan");
    const double least = 32.0 * 8 * bits / 8 * static_cast<double>(stored);  // layers, KV heads
    EXPECT_GT(ms, least / 27.2e6);
    EXPECT_LT(ms, 1.2 * least / 27.2e6);
  }
  EXPECT_TRUE(predict_stages(step("planes:bits=31"), small_card).empty());
}

TEST_F(GpuRooflineTest, ASlowEnoughIssueBecomesTheBound) {
  DecodeStep int4 = step("sparq");
  int4.columns = offload::ColumnFormat::int4;
  const auto bound_of_scan = [&](const GpuCard& card) {
    for (const PredictedStage& stage : predict_stages(int4, card)) {
      if (stage.stage == "column scan") return stage.bound;
    }
    return std::string();
  };
  EXPECT_EQ(bound_of_scan(small_card), "link");
  EXPECT_EQ(bound_of_scan({34, 0.05, 448, 27.2}), "instructions");
}

TEST_F(GpuRooflineTest, RowsAreThoseThatTheStepCounts) {
  DecodeStep dense = step("dense");
  dense.counters.at(Place::link, Kind::dense) = std::uint64_t{1} << 30;
  EXPECT_NEAR(ms_of(predict_stages(dense, small_card), "dense stream"), (1 << 30) / 27.2e6, 1e-9);
}

TEST_F(GpuRooflineTest, RowsOfIntegersTakeTheirOwnBytesAndAreTurned) {
  constexpr double row_bytes[] = {512, 264, 144};  // of d = 128
  const offload::RowFormat formats[] = {offload::RowFormat::f16, offload::RowFormat::int8, offload::RowFormat::int4};
  const auto predicted = [&](const DecodeStep& step, const char* name) {
    for (const PredictedStage& stage : predict_stages(step, small_card)) {
      if (stage.stage == name) return stage;
    }
    return PredictedStage();
  };
  constexpr std::uint64_t rows = 1 << 20;
  for (const char* const stage : {"rows", "dense stream"}) {
    double instructions = 0;
    for (int i = 0; i < 3; ++i) {
      DecodeStep step = this->step("sparq");
      step.rows = formats[i];
      step.counters.at(Place::link, stage[0] == 'r' ? Kind::rows : Kind::dense) =
          rows * static_cast<std::uint64_t>(row_bytes[i]);
      EXPECT_NEAR(predicted(step, stage).link_ms, rows * row_bytes[i] / 27.2e6, 1e-9);
      if (i == 0) instructions = predicted(step, stage).instructions_ms;
      EXPECT_GE(predicted(step, stage).instructions_ms, (i == 0 ? 1 : 1.5) * instructions);
    }
  }
}

TEST_F(GpuRooflineTest, WhatHasNotBeenCountedHasNoPrediction) {
  EXPECT_TRUE(predict_stages(step("sparq:r=8"), small_card).empty());
  EXPECT_TRUE(predict_stages(step("topk"), small_card).empty());
  config.query_heads = 16;
  EXPECT_TRUE(predict_stages(step("sparq"), small_card).empty());
}

TEST_F(GpuRooflineTest, ACardIsFourPositiveNumbers) {
  EXPECT_EQ(parse_card("34,2.5,448,27.2").multiprocessors, 34);
  EXPECT_EQ(parse_card("34,2.5,448,27.2").link_rate, 27.2);
  for (const char* text :
       {"", "34,2.5,448", "34,2.5,448,0", "34,2.5,448,27.2,1", "-1,2.5,448,27.2", "34,nan,448,27.2"}) {
    EXPECT_THROW(parse_card(text), Error) << text;
  }
}

TEST_F(GpuRooflineTest, APlanSaysThatItPredicts) {
  PlanRequest request;
  request.config = config;
  request.weights = weight_sizes(config, gpu::DType::f16);
  request.tokens = stored;
  request.methods = {parse_method("dense", {}), parse_method("sparq", {})};
  request.card = small_card;
  const std::string table = plan_table(make_plan(request, nullptr));
  EXPECT_NE(table.find("predicted ms per token on the given card"), std::string::npos) << table;
  EXPECT_NE(table.find("| components | column scan | tail scores | selection | alpha | rows |"), std::string::npos)
      << table;
  EXPECT_NE(table.find(" 314.57 link |"), std::string::npos) << table;
}

}  // namespace
}  // namespace hayloft::runtime::plan
