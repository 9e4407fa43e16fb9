#include <gtest/gtest.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "offload/text/units.h"
#include "runtime/plan/plan.h"
#include "tests/runtime/plan/planned.h"
#include "tests/support/refusal.h"

// Tests what the planner predicts by the rates of a machine, for tokens and for prompts, and how it says so.
namespace hayloft::runtime::plan {
namespace {

MachineProfile even_profile() {
  MachineProfile profile;
  profile.near_read = profile.weight_stream = 10;
  profile.matmul = 100;
  profile.layer_overhead_us = 10;
  profile.attention = {{128, 4, {10, 6, 3, 1}, 5, 2, 8, 20, 10, 4, 50}};
  return profile;
}
TEST(PlanOfTime, EveryTermIsItsBytesOverItsRate) {
  const PlanRequest request = llama_3_8b();
  const MachineProfile profile = even_profile();
  const Plan plan = make_plan(request, &profile);
  const auto at = [&](std::size_t i, Place place, Kind kind) {
    Counters counters = plan.methods[i].counters;
    return static_cast<double>(counters.at(place, kind)) / 1e6;
  };
  const PlanTime& dense = *plan.methods[0].ms;
  EXPECT_DOUBLE_EQ(dense.dense, at(0, Place::link, Kind::dense) / 8);
  EXPECT_DOUBLE_EQ(dense.tail, at(0, Place::device, Kind::rows) / 20);
  EXPECT_DOUBLE_EQ(dense.weights, static_cast<double>(request.weights.bytes_per_step) / 10e6);
  EXPECT_DOUBLE_EQ(dense.fixed, 0.32);
  EXPECT_EQ(dense.search, 0);
  const PlanTime& sparq = *plan.methods[1].ms;
  EXPECT_DOUBLE_EQ(sparq.search, at(1, Place::link, Kind::columns) / 10);
  EXPECT_DOUBLE_EQ(sparq.rows, at(1, Place::link, Kind::rows) / 2);
  EXPECT_DOUBLE_EQ(sparq.tail, at(1, Place::device, Kind::rows) / 10);
  EXPECT_DOUBLE_EQ(sparq.total(), sparq.search + sparq.rows + sparq.tail + sparq.weights + sparq.fixed);
  EXPECT_DOUBLE_EQ(plan.methods[2].ms->search, at(2, Place::near, Kind::columns) / 5);
}

TEST(PlanOfTime, SelectingCostsTimeForEveryPositionOfEveryList) {
  const PlanRequest request = llama_3_8b();
  MachineProfile profile = even_profile();
  const Plan reading = make_plan(request, &profile);
  profile.attention[0].column_select_us = 0.5;
  profile.attention[0].exact_select_us = 0.25;
  const Plan plan = make_plan(request, &profile);
  const auto positions = [&](std::size_t i) {  // of all lists and layers, by the rows that they fetch
    return static_cast<double>(plan.methods[i].counters.at(Place::link, Kind::rows)) / (4 * 128);
  };
  EXPECT_DOUBLE_EQ(plan.methods[1].ms->search, reading.methods[1].ms->search + positions(1) * 0.5e-3);
  EXPECT_DOUBLE_EQ(plan.methods[2].ms->search, reading.methods[2].ms->search + positions(2) * 0.25e-3);
  EXPECT_EQ(plan.methods[0].ms->search, 0) << "dense attention selects nothing";
}

TEST(PlanOfTime, AnIndexIsSearchedAtARateOfItsOwn) {
  PlanRequest request = llama_3_8b();
  request.methods = {parse_method("ann", {})};
  MachineProfile profile = even_profile();
  profile.attention[0].ann_search = 3;
  const Plan plan = make_plan(request, &profile);
  const Counters& counters = plan.methods[0].counters;
  EXPECT_GT(counters.at(Place::near, Kind::index), 0u) << "centroids";
  EXPECT_DOUBLE_EQ(plan.methods[0].ms->search, static_cast<double>(counters.total(Place::near)) / 1e6 / 3);
}

TEST(PlanOfTime, RatesAreThoseOfAStoreOfThatSize) {
  PlanRequest request = llama_3_8b();
  MachineProfile profile = even_profile();
  profile.footprint_bytes = std::uint64_t{1} << 30;
  profile.small_footprint_bytes = std::uint64_t{1} << 26;
  profile.attention_small = profile.attention;
  for (AttentionRates& rates : profile.attention_small) rates.sparq_scan(offload::ColumnFormat::f16) *= 4;
  request.tokens = 4096 + 256 + 4 * 4096;  // of 32 layers: blocks of more than a footprint in all
  const Plan plan = make_plan(request, &profile);
  const PlannedMethod& sparq = plan.methods[1];
  EXPECT_GT(plan.memory.store(), profile.footprint_bytes);
  EXPECT_LT(sparq.counters.total(Place::link), profile.footprint_bytes) << "a step reads some of the columns";
  EXPECT_DOUBLE_EQ(sparq.ms->search, static_cast<double>(sparq.counters.at(Place::link, Kind::columns)) / 1e6 / 10);
}

TEST(PlanOfTime, SearchesOfIntegerColumnsHaveRatesOfTheirOwn) {
  PlanRequest request = llama_3_8b();
  const MachineProfile profile = even_profile();
  for (const auto& [format, rate] : {std::pair{offload::ColumnFormat::int8, 6},
                                     {offload::ColumnFormat::int4, 3},
                                     {offload::ColumnFormat::planes, 1}}) {
    request.session.cache.columns = format;
    const Plan plan = make_plan(request, &profile);
    Counters sparq = plan.methods[1].counters;
    const std::uint64_t read = sparq.at(Place::link, Kind::columns) + sparq.at(Place::link, Kind::scales);
    EXPECT_GT(sparq.at(Place::link, Kind::scales), 0u);
    EXPECT_DOUBLE_EQ(plan.methods[1].ms->search, static_cast<double>(read) / 1e6 / rate);
    Counters topk = plan.methods[2].counters;
    EXPECT_DOUBLE_EQ(plan.methods[2].ms->search, static_cast<double>(topk.at(Place::near, Kind::rows)) / 1e6 / 4);
  }
}

TEST(PlanOfTime, PlanesOfAMillionTokensAre1200MegabytesAtTheShapeOfLlama3) {
  PlanRequest request = llama_3_8b();
  request.methods = {parse_method("planes:bits=32:k=1024", {})};
  EXPECT_TRUE(test::refuses([&] { make_plan(request, nullptr); }, {"planes bits=32", "f16", "--columns planes"}));
  request.session.cache.columns = offload::ColumnFormat::planes;
  const Plan plan = make_plan(request, nullptr);
  Counters read = plan.methods[0].counters;
  const double columns = static_cast<double>(read.at(Place::link, Kind::columns));
  const double ranges = static_cast<double>(read.at(Place::link, Kind::scales));
  // 32 layers, 8 KV heads, 32 bits of each position but those of the tail; 4 bytes of 32 components for 256 tokens.
  EXPECT_NEAR(columns, 32.0 * 8 * 4 * (1 << 20), 0.01 * columns);
  EXPECT_DOUBLE_EQ(ranges, columns / 8);
  EXPECT_NEAR(columns + ranges, 1.2e9, 0.01e9);
}

TEST(PlanOfPrefill, IsOperationsOverTheirRates) {
  PlanRequest request = llama_3_8b();
  request.session.prefill.window = 4096;
  request.session.prefill.sinks = 0;
  const MachineProfile profile = even_profile();
  const Plan plan = make_plan(request, &profile);
  ASSERT_EQ(plan.prefill.size(), 6u);
  const double S = 1 << 20;
  // The last layer stops at K and V. A query head multiplies and adds d times for a key's score and d for its value.
  const double exact = S * (S + 1) / 2 * 31 * 32 * 4 * 128;
  EXPECT_NEAR(plan.prefill[0].attention, exact, 1e-6 * exact);
  EXPECT_EQ(plan.prefill[1].attention, plan.prefill[0].attention) << "layer by layer is another order of the same";
  EXPECT_LT(plan.prefill[1].moved, plan.prefill[0].moved);
  const double products = static_cast<double>(plan.prefill[0].products);
  EXPECT_NEAR(products, 2 * S * 7.0e9 * 31 / 32, 0.02 * products) << "two for every weight but embedding and output";
  EXPECT_DOUBLE_EQ(*plan.prefill[0].seconds, products / 100e9 + plan.prefill[0].attention / 50e9);
  request.tokens /= 8;
  const Plan eighth = make_plan(request, &profile);
  EXPECT_NEAR(*plan.prefill[2].seconds / *eighth.prefill[2].seconds, 8, 0.2) << "window is linear";
  EXPECT_GT(*plan.prefill[3].seconds / *eighth.prefill[3].seconds, 16) << "topk searches all before it";
}

TEST(PlanOfPrefill, SparseCountsWhatItScoresAndIsPredictedOnACard) {
  PlanRequest request = llama_3_8b();
  request.session.prefill.sparse.density = 0.05;
  request.device_budget = std::uint64_t{16} << 30;
  request.card = parse_card("rtx5060ti");
  const Plan plan = make_plan(request, nullptr);
  const PlannedPrefill &exact = plan.prefill[0], &by_chunk = plan.prefill[4], &by_layer = plan.prefill[5];
  // 4 of 128 tokens choose and half a token measures, twice, at half the cost of attention.
  EXPECT_NEAR(by_chunk.attention / exact.attention, 0.05 + 4.5 / 128, 1e-6);
  EXPECT_EQ(by_layer.attention, by_chunk.attention);
  EXPECT_NEAR(by_chunk.moved, 3 * exact.moved, 0.001 * exact.moved) << "but for the first chunks";
  EXPECT_EQ(by_layer.moved, plan.prefill[1].moved);
  const double rate = 36 * 2.57e9 * 512 / 2;  // half of what its tensor cores multiply and add
  EXPECT_NEAR(*by_layer.card_seconds, (by_layer.products + by_layer.attention) / rate, 1);
  EXPECT_NEAR(*by_chunk.card_seconds, by_chunk.moved / (0.8 * 3.938e9 * 8), 1) << "the link";
  EXPECT_FALSE(plan.prefill[3].card_seconds) << "topk searches beside the memory";
  request.card = parse_card("34,2.5,448,27.2");
  EXPECT_FALSE(make_plan(request, nullptr).prefill[0].card_seconds) << "nobody said how fast it multiplies";
}
TEST(PlanReport, TableAndJsonCarryTheSameTotals) {
  const PlanRequest request = llama_3_8b();
  const MachineProfile profile = even_profile();
  const Plan plan = make_plan(request, &profile);
  const nlohmann::json json = nlohmann::json::parse(plan_json({plan}));
  EXPECT_EQ(json["schema"], "hayloft.plan/1");
  EXPECT_EQ(json["plans"][0]["bytes"]["total"], plan.memory.total());
  EXPECT_EQ(json["plans"][0]["methods"][0]["ms_per_token"]["total"], plan.methods[0].ms->total());
  const std::string table = plan_table(plan);
  EXPECT_NE(table.find(fmt::format("| {} |\n", format_duration(plan.methods[0].ms->total() / 1000))), std::string::npos)
      << table;
  EXPECT_NE(table.find("It fits."), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(plan_json({make_plan(request, nullptr)}))["plans"][0]["methods"][0]["ms_per_token"]
                  .is_null());
}

}  // namespace
}  // namespace hayloft::runtime::plan
