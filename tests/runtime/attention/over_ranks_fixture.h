#pragma once

#include <gtest/gtest.h>

#include "runtime/cluster/candidates.h"
#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/rank_attender.h"
#include "tests/support/method_fixture.h"
#include "tests/support/refusal.h"
#include "tests/support/shards.h"

namespace hayloft::runtime {

using cluster::Communicator;
using cluster::Traffic;
using offload::ColumnFormat;
using offload::RowFormat;

struct Formats {
  ColumnFormat columns = ColumnFormat::f16;
  RowFormat rows = RowFormat::f16;
};

// One decode step over a cache that ranks share, held against the same step over the whole of it.
class OverRanksTest : public testing::MethodTest {
 protected:
  struct RankOutput : Output {
    cluster::Ledger network;
  };

  std::vector<RankOutput> attend_over(int count, const std::string& text) {
    const auto by = method(text);
    std::vector<RankOutput> outputs(static_cast<std::size_t>(count));
    const gpu::CacheView whole = cache->view();
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const testing::ShardOfCache shard(whole, ranks.shard());
      RankOutput& output = outputs[static_cast<std::size_t>(ranks.rank())];
      output.y.resize(q.size());
      const auto state = by->make_state({1, query_heads, whole.kv_heads, whole.head_dim}, *backend);
      if (state) state->sync_with_cache({&shard.view(), 1}, {});
      take_step(*by, state.get(), shard.view(), *cluster::rank_attender(ranks), output);
      output.network = ranks.ledger();
    });
    return outputs;
  }

  // The positions, the output, its predicted error and the share attended of one machine, on every rank alike.
  void expect_estimated_as_alone(const std::string& text) {
    const Output alone = attend(text);
    for (const int count : {1, 2, 3, 4}) {
      const std::vector<RankOutput> outputs = attend_over(count, text);
      for (const RankOutput& output : outputs) {
        SCOPED_TRACE(fmt::format("{} over {} ranks", text, count));
        EXPECT_EQ(output.trace.positions, alone.trace.positions);
        EXPECT_EQ(output.counters.bytes, alone.counters.bytes);
        EXPECT_EQ(output.y, outputs.front().y) << "the same to the bit on every rank";
        EXPECT_EQ(output.estimate.error, outputs.front().estimate.error);
        for (std::size_t i = 0; i < alone.y.size(); ++i) ASSERT_NEAR(output.y[i], alone.y[i], 2e-5) << i;
        expect_near(output.estimate.error, alone.estimate.error);
        expect_near(output.estimate.attended, alone.estimate.attended);
        expect_near(output.trace.alpha, alone.trace.alpha);
      }
    }
  }
  static void expect_near(const std::vector<float>& values, const std::vector<float>& expected) {
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-4 * (1 + expected[i])) << i;
  }

  // Returns what each of so many ranks finds by itself of the store, for k of each query head, is scored by its keys.
  std::uint64_t scored_bytes(int count, std::int64_t k) const {
    const offload::BlockLayout& layout = *cache->stored().layout;
    std::uint64_t keys = 0;
    for (int rank = 0; rank < count; ++rank) {
      const std::int64_t own = offload::Shard{rank, count}.own(cache->shape().stored, layout.block_tokens);
      keys += static_cast<std::uint64_t>(query_heads * std::min(k, own));
    }
    return keys * layout.row_bytes / 2;
  }

  // Positions and counters equal to those of one machine, outputs to exact attention over them, on every rank alike.
  // What ranks find by searches that give no logits is read once more.
  void expect_as_alone(const std::string& text, bool mean_value = false, bool scored_again = false) {
    const Output alone = attend(text);
    const std::string name = text.substr(0, text.find(':'));
    const bool weighs = name == "sparq" || name == "planes" || name == "oracle" || name == "lowrank";
    ASSERT_EQ(alone.trace.alpha.empty(), !weighs);
    for (const int count : {1, 2, 3, 4}) {
      const std::vector<RankOutput> outputs = attend_over(count, text);
      for (const RankOutput& output : outputs) {
        SCOPED_TRACE(fmt::format("{} over {} ranks", text, count));
        EXPECT_EQ(output.trace.positions, alone.trace.positions);
        EXPECT_EQ(output.trace.lists, alone.trace.lists);
        for (const int range : {0, 1}) {
          EXPECT_EQ(output.trace.ranges[range].begin, alone.trace.ranges[range].begin);
          EXPECT_EQ(output.trace.ranges[range].end, alone.trace.ranges[range].end);
        }
        expect_consistent(output, mean_value);
        ASSERT_EQ(output.trace.alpha.size(), alone.trace.alpha.size());
        for (std::size_t h = 0; h < alone.trace.alpha.size(); ++h) {
          // Sums of some hundred exponentials, each off by 2e-7 and what the logits' rounding makes of it.
          EXPECT_NEAR(output.trace.alpha[h], alone.trace.alpha[h], 1e-5);
        }
        EXPECT_EQ(output.y, outputs.front().y) << "merged in the same order everywhere";
        Counters expected = alone.counters;
        if (scored_again) expected.at(Place::near, Kind::rows) += scored_bytes(count, alone.trace.k);
        EXPECT_EQ(output.counters.bytes, expected.bytes);
        EXPECT_EQ(output.counters.rows_fetched, alone.counters.rows_fetched);
      }
    }
  }
};

}  // namespace hayloft::runtime
