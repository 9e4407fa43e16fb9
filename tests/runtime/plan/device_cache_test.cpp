#include "runtime/plan/device_cache.h"

#include <gtest/gtest.h>

#include "runtime/plan/plan.h"

namespace hayloft::runtime::plan {
namespace {

TEST(DeviceCacheTest, MoreColumnsKeptHoldMoreOfWhatIsRead) {
  for (const double read : {0.01, 0.125, 0.2, 0.25, 0.4, 0.5, 1.0}) {
    double before = 0;
    EXPECT_EQ(expected_columns_held(read, 0), 0);
    for (double kept = 0.05; kept <= 1; kept += 0.05) {
      const double held = expected_columns_held(read, kept);
      EXPECT_GT(held, before);
      before = held;
    }
    EXPECT_DOUBLE_EQ(expected_columns_held(read, 1), 1);
  }
  EXPECT_NEAR(expected_columns_held(0.125, 0.5), 0.964, 1e-9);
  EXPECT_GT(expected_columns_held(0.125, 0.25), expected_columns_held(0.25, 0.25));
}

// The shape of Llama 3 8B in 4 bits on a card of 16 GiB.
Plan plan_of_8b(std::int64_t tokens, std::uint64_t device, CacheBudget cache = {}) {
  PlanRequest request;
  request.config = config_of_shape({.layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128});
  request.weights.bytes = std::uint64_t{4700} << 20;
  request.session.cache.columns = offload::ColumnFormat::int4;
  request.methods = {parse_method("sparq:r=16:k=128", {}), parse_method("dense", {})};
  request.tokens = tokens;
  request.device_budget = device;
  request.device_cache = cache;
  request.host_budget = request.available_bytes = std::uint64_t{1} << 40;
  return make_plan(request, nullptr);
}

TEST(DeviceCacheTest, AnEightBOnACardOf16GiBReadsATenthOverTheLinkAtAMillionTokens) {
  constexpr std::uint64_t card = std::uint64_t{16} << 30;
  const Plan million = plan_of_8b(1'000'000, card);
  const PlannedMethod& sparq = million.methods[0];
  EXPECT_GT(sparq.counters.total(Place::link), 2'100'000'000u);
  ASSERT_TRUE(sparq.cache);
  EXPECT_LT(sparq.cache->link_bytes, 200'000'000u);
  EXPECT_LT(sparq.cache->column_bytes + million.memory.device(), card);
  EXPECT_FALSE(million.methods[1].cache) << "dense reads no columns, and no lists";
  const Plan short_one = plan_of_8b(128 << 10, card);
  EXPECT_DOUBLE_EQ(short_one.methods[0].cache->columns_held, 1);
  EXPECT_LT(short_one.methods[0].cache->link_bytes, 50'000'000u);
}

TEST(DeviceCacheTest, WhatIsNotAskedForOrHasNoRoomIsNotExpected) {
  constexpr std::uint64_t card = std::uint64_t{16} << 30;
  EXPECT_FALSE(plan_of_8b(1'000'000, card, {0, 0}).methods[0].cache);
  const Plan rows = plan_of_8b(1'000'000, card, {0, std::uint64_t{1} << 30});
  EXPECT_EQ(rows.methods[0].cache->columns_held, 0);
  EXPECT_GT(rows.methods[0].cache->rows_held, 0);
  const Plan few = plan_of_8b(1'000'000, card, {std::uint64_t{1} << 30, 0});
  EXPECT_LE(few.methods[0].cache->column_bytes, std::uint64_t{1} << 30);
  EXPECT_LT(few.methods[0].cache->columns_held, 0.6);
}

}  // namespace
}  // namespace hayloft::runtime::plan
