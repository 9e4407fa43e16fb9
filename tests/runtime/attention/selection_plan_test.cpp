#include "runtime/attention/selection_plan.h"

#include <gtest/gtest.h>

#include "tests/support/method_fixture.h"

namespace hayloft::runtime {
namespace {

using testing::MethodTest;

// Attends to its window and nothing else, and notes the plans that are made.
class CountsPlans : public Method {
 public:
  using Method::Method;
  std::int64_t window(std::int64_t, int) const override { return 30; }

  mutable int plans = 0;
  mutable SelectionPlan attended, counted;

 protected:
  SelectionPlan plan_selection(const gpu::CacheView& cache, int query_heads) const override {
    ++plans;
    return Method::plan_selection(cache, query_heads);
  }
  Ranking ranking(const Step&, const SelectionPlan& plan) const override {
    attended = plan;
    return given_positions({});
  }
  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    counted = plan;
    return count_selection(cache, plan);
  }
};

TEST_F(MethodTest, AStepIsPlannedOnceAndCountedByThatPlan) {
  make({.kv_heads = 2, .head_dim = 16, .block_tokens = 64, .stored = 128, .tail = 20});
  MethodOptions options;
  options.k = Budget{30, 0};
  const CountsPlans tested(options);
  const Output output = attend(tested, nullptr);
  EXPECT_EQ(tested.plans, 1);
  EXPECT_EQ(tested.attended.limit, 118);
  EXPECT_EQ(tested.counted.limit, 118);
  EXPECT_EQ(output.counters.rows_fetched, 2u * 30u);
  EXPECT_EQ(tested.count(view_of(0), query_heads).rows_fetched, output.counters.rows_fetched);
}

TEST(SelectionPlan, RangesAreTheSinksAndWhatLiesBehindTheLimit) {
  SelectionPlan plan{.tokens = 100, .limit = 80, .lists = 2, .k = 3};
  EXPECT_EQ(plan.positions(), 6);
  EXPECT_EQ(plan.attended().ranges[0].begin, 80);
  EXPECT_EQ(plan.attended().ranges[0].end, 100);
  EXPECT_EQ(plan.attended().ranges[1].end, 0);
  plan.sinks = 4;
  EXPECT_EQ(plan.attended().ranges[0].end, 4);
  EXPECT_EQ(plan.attended().ranges[1].begin, 80);
  gpu::CacheView cache;
  cache.kv_heads = 2;
  cache.head_dim = 16;
  EXPECT_EQ(StepTerms(cache, plan).k, 3u + 4u + 20u);
}

}  // namespace
}  // namespace hayloft::runtime
