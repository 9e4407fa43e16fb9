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
  DecodeStep step(const char* method, offload::ColumnFormat columns = offload::ColumnFormat::f16) {
    DecodeStep step;
    step.config = &config;
    step.weights.bytes_per_step = std::uint64_t{15} << 30;
    step.method = parse_method(method, {});
    step.columns = columns;
    if (step.method.name != "dense") {
      const std::uint64_t heads =
          static_cast<std::uint64_t>(config.layers) * static_cast<std::uint64_t>(config.kv_heads);
      const offload::BlockLayout layout({1, config.kv_heads, config.head_dim, 4096, columns, offload::RowFormat::f16});
      gpu::CacheView cache;
      cache.kv_heads = config.kv_heads;
      cache.head_dim = config.head_dim;
      cache.store.layout = &layout;
      cache.store.tokens = stored;
      const SharedMethod made = make_method(step.method, config.head_dim);
      step.counters.at(Place::link, Kind::columns) = 0;
      step.counters.positions_scored = heads * stored;
      const Counters of_layer = made->count(cache, config.query_heads);
      for (const Kind kind : {Kind::columns, Kind::scales}) {
        step.counters.at(Place::link, kind) =
            of_layer.at(Place::link, kind) * static_cast<std::uint64_t>(config.layers);
      }
    }
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
    const DecodeStep planes = step(("planes:bits=" + std::to_string(bits)).c_str(), offload::ColumnFormat::planes);
    const double ms = ms_of(predict_stages(planes, small_card), "column scan");
    const double least = 32.0 * 8 * bits / 8 * static_cast<double>(stored);  // layers, KV heads
    EXPECT_GT(ms, least / 27.2e6);
    EXPECT_LT(ms, 1.2 * least / 27.2e6);
  }
}

TEST_F(GpuRooflineTest, ASlowEnoughIssueBecomesTheBound) {
  const DecodeStep int4 = step("sparq", offload::ColumnFormat::int4);
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

TEST_F(GpuRooflineTest, EveryShapeHasItsLogitsAndItsSelection) {
  const auto basis = [&](const DecodeStep& of, const char* name) {
    for (const PredictedStage& stage : predict_stages(of, small_card)) {
      if (stage.stage == name) return stage.basis;
    }
    return Basis::assumed;
  };
  const double selection = ms_of(predict_stages(step("sparq"), small_card), "selection");
  EXPECT_EQ(basis(step("sparq"), "selection"), Basis::counted);
  EXPECT_EQ(basis(step("sparq:r=8"), "column scan"), Basis::scaled);
  EXPECT_EQ(basis(step("sparq:r=8"), "selection"), Basis::counted);
  config = config_of_shape({.layers = 32, .heads = 64, .kv_heads = 8, .head_dim = 256});
  // Twice the query heads have twice the logits; the components of a key are not selected from.
  EXPECT_NEAR(ms_of(predict_stages(step("sparq"), small_card), "selection"), 2 * selection, 0.01 * selection);
  EXPECT_EQ(basis(step("sparq"), "selection"), Basis::scaled);
  config = config_of_shape({.layers = 16, .heads = 32, .kv_heads = 8, .head_dim = 128});
  EXPECT_NEAR(ms_of(predict_stages(step("sparq"), small_card), "selection"), selection / 2, 0.01 * selection);
}

TEST_F(GpuRooflineTest, ColumnsThatTheDeviceKeepsAreReadThere) {
  DecodeStep all_there = step("sparq");
  const double link = ms_of(predict_stages(all_there, small_card), "column scan");
  all_there.columns_held = 1;
  const double memory = ms_of(predict_stages(all_there, small_card), "column scan");
  const double columns = 32.0 * 8 * 16 * 2 * static_cast<double>(stored);
  EXPECT_GT(memory, columns / 448e6);  // and the logits are written
  EXPECT_LT(memory, link / 4);
  all_there.columns_held = 0.5;
  EXPECT_NEAR(ms_of(predict_stages(all_there, small_card), "column scan"), link / 2, 1e-9);
}

TEST_F(GpuRooflineTest, ColumnsThatAreChosenAgainComeWhileMatricesAreMultiplied) {
  DecodeStep fetched = step("sparq");
  const auto alone = predict_stages(fetched, small_card);
  const double link = ms_of(alone, "column scan"), weights = ms_of(alone, "weights");
  ASSERT_GT(link, weights) << "for there is not time for all of them";
  fetched.columns_again = 0.7;
  const auto stages = predict_stages(fetched, small_card);
  EXPECT_NEAR(ms_of(stages, "column scan"), link - 0.7 * weights, 1e-9);
  EXPECT_NEAR(ms_of(stages, "launches"), ms_of(alone, "launches") + 32 * 3 * 0.003, 1e-9);
  for (const PredictedStage& stage : stages) {
    EXPECT_EQ(stage.basis == Basis::assumed, stage.stage == "column scan" || stage.stage == "launches") << stage.stage;
  }
  fetched.weights.bytes_per_step *= 10;
  EXPECT_NEAR(ms_of(predict_stages(fetched, small_card), "column scan"), 0.3 * link, 1e-9);
}

TEST_F(GpuRooflineTest, BoundsOfStripsTakeThePlaceOfLogits) {
  DecodeStep held = step("sparq", offload::ColumnFormat::int4);
  held.columns_held = 1;
  DecodeStep strips = held;
  for (const GpuCard& card : {small_card, parse_card("rtxa4000")}) {
    const auto both = [&](const DecodeStep& of) {
      const auto stages = predict_stages(of, card);
      return ms_of(stages, "column scan") + ms_of(stages, "selection");
    };
    EXPECT_GT(both(held), 30);
    strips.by_strips = 32 * 8 * 768;
    EXPECT_LT(both(strips), 12.5);
    const double most = both(strips);
    strips.by_strips = 32 * 8 * 96;  // for which fewer strips are listed
    EXPECT_LT(both(strips), most - 2);
  }
}

TEST_F(GpuRooflineTest, PackedWeightsTakeTheInstructionsOfTheirCodes) {
  DecodeStep packed = step("dense");
  packed.weights.weights_per_step[4] = std::uint64_t{8} << 30;
  const auto weights = [&](const DecodeStep& of) {
    for (const PredictedStage& stage : predict_stages(of, small_card)) {
      if (stage.stage == "weights") return stage.instructions_ms;
    }
    return 0.0;
  };
  EXPECT_NEAR(weights(packed), (8 << 20) * 122.0 / (34 * 4 * 2.5e6), 1e-9);
  packed.weights.weights_per_step = {};
  packed.weights.weights_per_step[6] = std::uint64_t{8} << 30;
  EXPECT_NEAR(weights(packed), (8 << 20) * 186.0 / (34 * 4 * 2.5e6), 1e-9);
}

TEST_F(GpuRooflineTest, EveryKernelOfEveryLayerIsLaunched) {
  const auto kernels = [&](const DecodeStep& of) {
    return ms_of(predict_stages(of, small_card), "launches") / (32 * 0.003);
  };
  EXPECT_NEAR(kernels(step("dense")), 10, 1e-9);
  DecodeStep lists = step("sparq");
  EXPECT_NEAR(kernels(lists), 17, 1e-9);
  // Four query heads have so many partial softmaxes with the newest tokens' that the scan normalises, or one too many.
  lists.counters.positions_scored = 32 * 8 * (std::int64_t{1} << 19);
  EXPECT_NEAR(kernels(lists), 17, 1e-9);
  lists.counters.positions_scored = 32 * 8 * ((std::int64_t{1} << 19) - 256);
  EXPECT_NEAR(kernels(lists), 16, 1e-9);
  DecodeStep brief = step("sparq");
  brief.counters.positions_scored = 32 * 8 * 65536;
  EXPECT_NEAR(kernels(brief), 14, 1e-9);
  DecodeStep kept = lists;
  kept.columns_held = kept.rows_held = 0.5;
  EXPECT_NEAR(kernels(kept), 17, 1e-9);
  kept.columns = offload::ColumnFormat::planes;
  EXPECT_NEAR(kernels(kept), 19, 1e-9);
  DecodeStep strips = lists;
  strips.by_strips = 1;
  strips.columns_held = strips.rows_held = 0.5;
  EXPECT_NEAR(kernels(strips), 18, 1e-9);
}

TEST_F(GpuRooflineTest, ACardIsANameOrFourPositiveNumbers) {
  EXPECT_EQ(parse_card("34,2.5,448,27.2").multiprocessors, 34);
  EXPECT_EQ(parse_card("34,2.5,448,27.2").link_rate, 27.2);
  EXPECT_EQ(parse_card("34,2.5,448,27.2").memory_bytes, 0);
  const GpuCard named = parse_card("RTX 5060 Ti");
  EXPECT_EQ(named.multiprocessors, 36);
  EXPECT_EQ(named.memory_bytes, std::uint64_t{16} << 30);
  EXPECT_NEAR(named.link_rate, 25.2, 0.01);  // 8 lanes of generation 5
  for (const char* text : {"", "34,2.5,448", "34,2.5,448,0", "34,2.5,448,27.2,1", "-1,2.5,448,27.2", "34,nan,448,27.2",
                           "rtx", "gtx4060"}) {
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
  EXPECT_NE(table.find("| components | column scan | selection | rows |"), std::string::npos) << table;
  EXPECT_NE(table.find(" 314.57 link |"), std::string::npos) << table;
}

}  // namespace
}  // namespace hayloft::runtime::plan
