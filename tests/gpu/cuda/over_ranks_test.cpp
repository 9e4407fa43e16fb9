#include <fmt/format.h>

#include <algorithm>

#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/support/method_fixture.h"
#include "tests/support/shards.h"

// Ranks that hold a context together and attend to their shards on CUDA, against one machine on the CPU.
namespace hayloft::testing {
namespace {

using offload::ColumnFormat;
using offload::RowFormat;
using runtime::cluster::Communicator;

class StepsOverRanksOnCuda : public MethodTest {
 protected:
  void SetUp() override {
    if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
    cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  }

  void make(const CacheShape& shape, int group, bool pinned) {
    cache.emplace(shape, pinned ? cuda->pinning() : nullptr);
    query_heads = group * shape.kv_heads;
    q = normal(static_cast<std::size_t>(query_heads * shape.head_dim), shape.seed + 50, 2);
    tail = upload(*cuda, cache->tail_rows());
  }

  std::vector<Output> attend_over(int count, const std::string& text) {
    const auto by = method(text);
    std::vector<Output> outputs(static_cast<std::size_t>(count));
    gpu::CacheView whole = cache->view();
    whole.tail.rows = tail.as<f16>();
    runtime::cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const ShardOfCache shard(whole, ranks.shard());
      Output& output = outputs[static_cast<std::size_t>(ranks.rank())];
      const gpu::Buffer queries = upload(*cuda, q);
      const gpu::Buffer out = cuda->allocate(queries.bytes(), cuda->stream());
      runtime::MethodScratch scratch;
      const offload::Store none(arena, {1, whole.kv_heads, whole.head_dim, 64});
      const auto state = by->make_state({1, query_heads, whole.kv_heads, whole.head_dim}, *cuda);
      if (state) state->sync_with_cache({&shard.view(), 1}, {});
      const runtime::LayerStep at{*cuda, cuda->stream(), 0, shard.view(), none, query_heads, 1, scratch};
      const runtime::SharedAttender attender = runtime::cluster::rank_attender(ranks);
      output.counters = by->attend(
          {at, queries.as<float>(), out.as<float>(), *attender, state.get(), &output.trace, nullptr, &output.estimate});
      output.y = download<float>(*cuda, out);
    });
    return outputs;
  }

  void expect_as_alone(const std::string& text, bool mean_value = false) {
    const Output alone = attend(text);
    for (const int count : {2, 3}) {
      const std::vector<Output> outputs = attend_over(count, text);
      for (const Output& output : outputs) {
        SCOPED_TRACE(fmt::format("{} over {} ranks", text, count));
        EXPECT_EQ(output.trace.positions, alone.trace.positions);
        expect_consistent(output, mean_value);
        ASSERT_EQ(output.trace.alpha.size(), alone.trace.alpha.size());
        // As of ranks on the CPU: sums of some hundred exponentials.
        for (std::size_t h = 0; h < alone.trace.alpha.size(); ++h) {
          EXPECT_NEAR(output.trace.alpha[h], alone.trace.alpha[h], 1e-5);
        }
        EXPECT_EQ(output.y, outputs.front().y) << "merged in the same order everywhere";
      }
    }
  }

  std::unique_ptr<gpu::Backend> cuda;
  gpu::Buffer tail;
};

TEST_F(StepsOverRanksOnCuda, AttendToWhatOneMachineAttendsTo) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8, RowFormat::int4}) {
    for (const bool pinned : {true, false}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 5 * 64, .tail = 80, .rows = rows}, 3, pinned);
      for (const char* text : {"dense", "window:k=250:sinks=70", "topk:k=40", "topk:k=150:window=130:select=kv-head"}) {
        expect_as_alone(text);
      }
    }
  }
}

TEST_F(StepsOverRanksOnCuda, SelectByExactScoresAndByWhatIsMadeOfKeys) {
  make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 7 * 64, .tail = 100}, 3, true);
  for (const char* text : {"flexgen:k=50", "pages:k=128", "pages:k=10:page=64:group=logits"}) expect_as_alone(text);
  for (const char* text : {"oracle:k=50", "oracle:k=300:window=200:select=query-head", "lowrank:r=6:k=50",
                           "lowrank:r=6:k=50:group=logits"}) {
    expect_as_alone(text, true);
  }
}

TEST_F(StepsOverRanksOnCuda, SearchColumnsOnTheDevice) {
  cuda->time_stages(true);
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::int8, ColumnFormat::planes}) {
    for (const int group : {1, 3}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 128, .stored = 5 * 128, .tail = 150, .columns = columns},
           group, true);
      expect_as_alone(columns == ColumnFormat::planes ? "planes:bits=24:k=60" : "sparq:r=8:k=60", true);
      expect_as_alone("sparq:r=8:k=60:group=logits", true);
    }
  }
  EXPECT_TRUE(std::ranges::any_of(cuda->stage_times(), [](const auto& stage) { return stage.name == "column scan"; }));
}

// The masses are made near the memory, as on the CPU; what is attended exactly is merged in another order.
TEST_F(StepsOverRanksOnCuda, EstimateTheRestAsOneMachine) {
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::planes}) {
    make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 7 * 64, .tail = 100, .columns = columns}, 3,
         true);
    const std::string ranking = columns == ColumnFormat::planes ? "planes:bits=40:k=60" : "sparq:r=8:k=60";
    for (const std::string& text :
         {ranking + ":rest=draw", ranking + ":rest=calibrated", std::string("topk:k=40:rest=draw")}) {
      const Output alone = attend(text);
      for (const int count : {1, 2, 3}) {
        for (const Output& output : attend_over(count, text)) {
          SCOPED_TRACE(fmt::format("{} over {} ranks", text, count));
          EXPECT_EQ(output.trace.positions, alone.trace.positions);
          for (std::size_t i = 0; i < alone.y.size(); ++i) ASSERT_NEAR(output.y[i], alone.y[i], 1e-4) << i;
          for (std::size_t h = 0; h < alone.estimate.error.size(); ++h) {
            EXPECT_NEAR(output.estimate.error[h], alone.estimate.error[h], 1e-3) << h;
          }
        }
      }
    }
  }
}

TEST_F(StepsOverRanksOnCuda, ShortContextsLeaveSomeRanksNothing) {
  for (const std::int64_t blocks : {0, 1, 2}) {
    make({.kv_heads = 1, .head_dim = 16, .block_tokens = 64, .stored = blocks * 64, .tail = 70}, 2, true);
    for (const char* text : {"dense", "window:k=8", "topk:k=1000", "pages:k=9:page=16:window=0"}) expect_as_alone(text);
    for (const char* text : {"oracle:k=8", "oracle:k=1000", "sparq:r=4:k=8", "sparq:r=4:k=1000"})
      expect_as_alone(text, true);
  }
}

}  // namespace
}  // namespace hayloft::testing
