#include <gtest/gtest.h>

#include "gpu/make_backend.h"
#include "offload/host/topology.h"
#include "runtime/machine/attention_bench.h"
#include "tests/support/refusal.h"

// hayloft bench: steps of attention over noise, as many layers as host memory holds.
namespace hayloft::runtime::plan {
namespace {

class AttentionBenchTest : public ::testing::Test {
 protected:
  AttentionBench bench(std::int64_t tokens) const {
    AttentionBench bench;
    bench.layers = 4;
    bench.query_heads = 4;
    bench.kv_heads = 2;
    bench.head_dim = 32;
    bench.block_tokens = 64;
    bench.tokens = tokens;
    bench.seconds = 0.01;
    MethodOptions sparq;
    sparq.name = "sparq";
    sparq.k = Budget{16, 0};
    sparq.rank = 8;
    bench.methods = {MethodOptions{}, sparq};
    return bench;
  }
  AttentionBenchResult run(const AttentionBench& what, std::uint64_t budget) {
    offload::Arena arena(offload::Topology(), {budget, "--host-memory", std::uint64_t{1} << 20});
    return bench_attention(*backend_, arena, what);
  }

  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
};

TEST_F(AttentionBenchTest, CountsWhatItsStepsReadInAllLayers) {
  AttentionBenchResult result = run(bench(1000), std::uint64_t{64} << 20);
  EXPECT_EQ(result.measured_layers, 4);
  ASSERT_EQ(result.rows.size(), 2u);
  // 15 blocks of 64 lie in the store and 40 tokens in the tail; a row of K and V is 4 d bytes.
  const std::uint64_t rows = 4u * 2u * 960u * 4u * 32u;
  EXPECT_EQ(result.rows[0].counters.at(Place::link, Kind::dense), rows);
  EXPECT_EQ(result.rows[1].counters.at(Place::link, Kind::columns), 4u * 2u * 960u * 8u * sizeof(f16));
  ASSERT_EQ(result.rows[1].stages.size(), 2u);
  EXPECT_EQ(result.rows[1].stages[0].name, "select_sparq");
  EXPECT_EQ(result.rows[1].stages[1].name, "attend");
  EXPECT_GT(result.rows[1].ms, 0);
}

TEST_F(AttentionBenchTest, FewerLayersAreMeasuredAndScaledWhereMemoryIsShort) {
  const AttentionBench what = bench(1000);
  const AttentionBenchResult all = run(what, std::uint64_t{64} << 20);
  // A layer is 15 blocks of 24.25 KiB, and the noise they are copied from another 8.
  const AttentionBenchResult some = run(what, std::uint64_t{1200} << 10);
  EXPECT_LT(some.measured_layers, 4);
  EXPECT_GE(some.measured_layers, 1);
  EXPECT_EQ(some.rows[0].counters.total(Place::link), all.rows[0].counters.total(Place::link));
}

TEST_F(AttentionBenchTest, LayersOfDifferentKAreNotScaledFromFewer) {
  AttentionBench what = bench(1000);
  what.methods.back().k = Budgets({Budget{64, 0}, Budget{16, 0}});
  EXPECT_EQ(run(what, std::uint64_t{64} << 20).measured_layers, 4);
  EXPECT_TRUE(test::refuses([&] { run(what, std::uint64_t{1200} << 10); }, {"--attn-k 64,16", "of 4 layers"}));
}

TEST_F(AttentionBenchTest, MemoryTooSmallForOneLayerIsRefused) {
  EXPECT_TRUE(test::refuses([&] { run(bench(100000), std::uint64_t{1} << 20); }, {"100000", "--host-memory"}));
}

// The stages are timed in steps of their own, which may be slower than those that the median is of.
TEST(AttentionBenchParts, NeverExceedTheWhole) {
  const std::vector<PartTime> slow = shares({{"select", 0.3, 1}, {"attend", 0.1, 1}}, 0.5, 2.0);
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_DOUBLE_EQ(slow[0].ms, 1.2);
  EXPECT_DOUBLE_EQ(slow[1].ms, 0.4);
  double sum = 0;
  for (const PartTime& part : shares({{"copy", 0.6, 1}, {"attend", 0.6, 1}}, 0.8, 2.0)) sum += part.ms;
  EXPECT_DOUBLE_EQ(sum, 2.0) << "at the same time on a device";
}

}  // namespace
}  // namespace hayloft::runtime::plan
