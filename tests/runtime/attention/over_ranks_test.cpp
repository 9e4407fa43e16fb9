#include "tests/runtime/attention/over_ranks_fixture.h"

// Methods that scan: each attends over ranks as on one machine.
namespace hayloft::runtime {
namespace {

TEST_F(OverRanksTest, StepsAttendToWhatOneMachineAttendsTo) {
  for (const Formats& formats :
       {Formats{}, Formats{ColumnFormat::int8, RowFormat::f16}, Formats{ColumnFormat::int4, RowFormat::int8},
        Formats{ColumnFormat::f16, RowFormat::int4}}) {
    make({.kv_heads = 2,
          .head_dim = 32,
          .block_tokens = 64,
          .stored = 11 * 64,
          .tail = 100,
          .columns = formats.columns,
          .rows = formats.rows},
         3);
    for (const char* text : {"dense", "window:k=200", "window:k=500:sinks=70", "topk:k=40", "topk:k=150:window=130"}) {
      expect_as_alone(text);
    }
  }
}

TEST_F(OverRanksTest, StepsByColumnsSelectAndWeighAsOneMachine) {
  std::vector<Formats> all{Formats{ColumnFormat::int8, RowFormat::int8}};
  for (const ColumnFormat columns : offload::all_column_formats()) {
    if (!in_planes(columns)) all.push_back({columns, RowFormat::f16});
  }
  for (const Formats& formats : all) {
    for (const int group : {1, 3}) {
      make({.kv_heads = 2,
            .head_dim = 32,
            .block_tokens = 64,
            .stored = 11 * 64,
            .tail = 100,
            .columns = formats.columns,
            .rows = formats.rows},
           group);
      // The mean value is that of the rows before they were quantised, which the fixture does not know.
      const bool mean = formats.rows == RowFormat::f16;
      for (std::string text : {"sparq:r=8:k=60", "sparq:r=8:k=60:group=logits", "sparq:r=4:k=600:window=300"}) {
        expect_as_alone(text + ":mean=off");
        if (mean) expect_as_alone(text, true);
      }
      expect_as_alone("topk:k=50:select=kv-head");
      expect_as_alone("topk:k=50:select=kv-head:group=logits");
    }
  }
}

TEST_F(OverRanksTest, StepsByPlanesReadTheComponentsOfOneMachine) {
  for (const int group : {1, 3}) {
    make({.kv_heads = 2,
          .head_dim = 32,
          .block_tokens = 64,
          .stored = 11 * 64,
          .tail = 100,
          .columns = ColumnFormat::planes},
         group);
    for (const char* text : {"planes:bits=24:k=60", "planes:bits=9:k=60:group=logits", "sparq:r=6:k=60:by=qk",
                             "sparq:r=6:k=60", "planes:bits=60:k=600:window=300"}) {
      expect_as_alone(text, true);
    }
  }
}

TEST_F(OverRanksTest, StepsByExactScoresAndByWhatIsMadeOfKeysSelectAsOneMachine) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8}) {
    for (const int group : {1, 3}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 11 * 64, .tail = 100, .rows = rows}, group);
      expect_as_alone("flexgen:k=50");
      expect_as_alone("flexgen:k=50:group=logits");
      expect_as_alone("flexgen:k=500");
      for (const std::string select : {"", ":select=query-head"}) {
        expect_as_alone("pages:k=128" + select);
        expect_as_alone("pages:k=300:page=16:window=130" + select);
        expect_as_alone("pages:k=10:page=64" + (select.empty() ? ":group=logits" : select));
        const bool mean = rows == RowFormat::f16;
        for (const std::string method : {"oracle:k=50", "oracle:k=600:window=300", "lowrank:r=6:k=50",
                                         "lowrank:r=6:k=50:group=logits", "lowrank:r=6:k=600:window=300"}) {
          if (!select.empty() && method.find("group=") != std::string::npos) continue;  // it has no effect there
          expect_as_alone(method + select + ":mean=off");
          if (mean) expect_as_alone(method + select, true);
        }
      }
    }
  }
}

TEST_F(OverRanksTest, AutoChoosesAsOneMachine) {
  for (const std::int64_t blocks : {0, 3, 200}) {
    for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::planes}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = blocks * 64, .tail = 70, .columns = columns});
      const Output alone = attend("auto:k=64");
      EXPECT_EQ(alone.trace.lists > 0, blocks > 3);  // short contexts are read whole
      for (const int count : {2, 3}) {
        for (const RankOutput& output : attend_over(count, "auto:k=64")) {
          EXPECT_EQ(output.trace.positions, alone.trace.positions);
          EXPECT_EQ(output.trace.alpha.size(), alone.trace.alpha.size());
          EXPECT_EQ(output.counters.bytes, alone.counters.bytes);
        }
      }
    }
  }
}

TEST_F(OverRanksTest, ShortContextsLeaveSomeRanksNothing) {
  for (const std::int64_t blocks : {0, 1, 2, 3}) {
    make({.kv_heads = 1, .head_dim = 16, .block_tokens = 64, .stored = blocks * 64, .tail = 70});
    for (const char* text : {"dense", "window:k=8", "topk:k=1000", "topk:k=9:window=0"}) expect_as_alone(text);
    for (const char* text : {"topk:k=8:engine=faiss", "topk:k=1000:engine=faiss"}) expect_as_alone(text, false, true);
    for (const char* text : {"ann:k=8", "ann:k=1000"}) expect_as_alone(text, false, true);
    for (const char* text : {"flexgen:k=8", "pages:k=100", "pages:k=9:page=16:window=0"}) expect_as_alone(text);
    for (const char* text : {"sparq:r=4:k=8", "sparq:r=4:k=1000", "sparq:r=4:k=8:group=logits", "oracle:k=8",
                             "oracle:k=1000", "lowrank:r=4:k=8", "lowrank:r=4:k=1000"})
      expect_as_alone(text, true);
  }
}

TEST_F(OverRanksTest, MessagesAreThoseOfTheFormulaAtEveryLength) {
  for (const std::int64_t blocks : {4, 40}) {
    make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = blocks * 64, .tail = 80});
    for (const int count : {2, 4}) {
      const auto parts = cluster::AttentionParts::bytes(query_heads, 32);
      for (const std::string text : {"dense", "window:k=100", "topk:k=50", "topk:k=50:engine=faiss", "ann:k=50"}) {
        const bool selects = text[0] == 't' || text[0] == 'a';
        const std::uint64_t counts = text[0] == 'a' ? 24 : 0;  // of what an index has looked at
        for (const RankOutput& output : attend_over(count, text)) {
          const auto& attention = output.network.of(Traffic::attention);
          EXPECT_EQ(attention.messages, 1u);
          EXPECT_EQ(attention.sent, parts);
          EXPECT_EQ(attention.received, static_cast<std::uint64_t>(count - 1) * parts);
          const auto& candidates = output.network.of(Traffic::candidates);
          EXPECT_EQ(candidates.messages, selects ? 1u : 0u);
          EXPECT_EQ(candidates.sent, selects ? cluster::Candidates::bytes(query_heads, 1, 50) + counts : 0u);
          EXPECT_EQ(output.network.total().messages, selects ? 2u : 1u);
        }
      }
    }
  }
}

TEST_F(OverRanksTest, SparqTakesTwoMessages) {
  struct Case {
    const char* text;
    int group;
  };
  for (const std::int64_t blocks : {4, 40}) {
    for (const Case& of : {Case{"sparq:r=8:k=50:window=0", 2}, Case{"sparq:r=8:k=50:window=0:group=logits", 2},
                           Case{"sparq:r=8:k=50:window=0", 1}}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = blocks * 64, .tail = 80}, of.group);
      for (const RankOutput& output : attend_over(3, of.text)) {
        EXPECT_EQ(output.network.total().messages, 2u) << of.text;
        // Two softmaxes of a query head, with a maximum and a sum each, go with the candidates.
        EXPECT_EQ(output.network.total().sent, cluster::AttentionParts::bytes(query_heads, 32) +
                                                   cluster::Candidates::bytes(2, of.group, 50) +
                                                   4 * sizeof(float) * static_cast<unsigned>(query_heads));
      }
    }
  }
}

// Two query heads rank together. The first's softmax lies nearly whole on rank 0, whose first position takes it all,
// and the second's is even: rank 0 leaves out positions that only the second head asks for, and by the softmaxes over
// all ranks they are among the best.
TEST_F(OverRanksTest, WhatARankLeavesOutByItsOwnSoftmaxesIsAddedByAnotherMessage) {
  make({.kv_heads = 1, .head_dim = 32, .block_tokens = 64, .stored = 12 * 64, .tail = 80}, 2);
  int further = 0;
  for (int seed = 0; seed < 20; ++seed) {
    q = testing::normal(q.size(), static_cast<unsigned>(seed), 3);
    for (int i = 0; i < 32; ++i) q[static_cast<std::size_t>(i)] *= 4;
    for (const char* text : {"sparq:r=8:k=40:window=0", "topk:k=8:select=kv-head", "topk:k=60:select=kv-head"}) {
      const Output alone = attend(text);
      for (const int count : {2, 3, 4}) {
        for (const RankOutput& output : attend_over(count, text)) {
          EXPECT_EQ(output.trace.positions, alone.trace.positions) << text << " over " << count;
          further += output.network.total().messages > 2 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(further, 0);
}

// A draw that differed in one position would be off by far more than sums of some hundred terms in another order.
TEST_F(OverRanksTest, TheRestIsEstimatedAndItsErrorPredictedAsOnOneMachine) {
  for (const bool planes : {true, false}) {
    for (const int group : {1, 3}) {
      make({.kv_heads = 2,
            .head_dim = 32,
            .block_tokens = 64,
            .stored = 11 * 64,
            .tail = 100,
            .columns = planes ? ColumnFormat::planes : ColumnFormat::f16},
           group);
      std::vector<std::string> methods{"topk:k=60", "topk:k=150:window=130:select=kv-head", "oracle:k=60:window=0"};
      if (planes) {
        methods.insert(methods.end(), {"planes:bits=40:k=60", "planes:bits=24:k=90:group=logits"});
      } else {
        methods.insert(methods.end(), {"sparq:r=8:k=60", "sparq:r=8:k=60:group=logits", "sparq:r=4:k=600:window=300",
                                       "sparq:r=8:k=1:window=0", "lowrank:r=6:k=60"});
      }
      for (const std::string& method : methods) {
        for (const char* const rest : {"draw:seed=1", "draw:seed=2", "calibrated"}) {
          expect_estimated_as_alone(method + ":rest=" + rest);
        }
      }
    }
  }
}

TEST_F(OverRanksTest, ShortContextsLeaveSomeRanksNothingToDraw) {
  for (const std::int64_t blocks : {0, 1, 2, 3}) {
    make({.kv_heads = 1, .head_dim = 16, .block_tokens = 64, .stored = blocks * 64, .tail = 70});
    for (const char* text : {"topk:k=8:rest=draw", "topk:k=1000:rest=draw", "sparq:r=4:k=40:rest=draw",
                             "sparq:r=4:k=8:rest=calibrated", "oracle:k=150:window=0:rest=draw"}) {
      expect_estimated_as_alone(text);
    }
  }
}

TEST_F(OverRanksTest, ARestTakesMessagesOfTheFormula) {
  make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 11 * 64, .tail = 80}, 2);
  const auto parts = cluster::AttentionParts::bytes(query_heads, 32);
  // 25 rows and 50 values of each list: with masses of two query heads and what ranks them, and the sums of values. Of
  // 704 positions 176 are the sample of the lines.
  for (const RankOutput& output : attend_over(3, "sparq:r=8:k=50:window=0:group=logits:rest=draw")) {
    EXPECT_EQ(output.network.of(Traffic::attention).messages, 2u);
    EXPECT_EQ(output.network.of(Traffic::attention).sent, parts + 2 * 4 * 4 * 176 + 4 * 4 * (2 * 32 + 1));
    EXPECT_EQ(output.network.of(Traffic::candidates).messages, 2u);
    EXPECT_EQ(output.network.of(Traffic::candidates).sent,
              cluster::Candidates::bytes(2, 2, 25) + 4 * 4 * 4 + cluster::Candidates::bytes(2, 3, 51));
  }
  for (const RankOutput& output : attend_over(3, "topk:k=50:window=0:rest=calibrated")) {
    EXPECT_EQ(output.network.of(Traffic::attention).sent, parts);
    EXPECT_EQ(output.network.of(Traffic::candidates).messages, 2u);
    EXPECT_EQ(output.network.of(Traffic::candidates).sent, cluster::Candidates::bytes(4, 1, 50) + 2 * 4 * 8);
  }
}

TEST_F(OverRanksTest, APromptAttendsExactly) {
  constexpr int T = 70;
  const testing::CacheShape shape{.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 9 * 64, .tail = 90};
  make(shape);
  const std::vector<float> queries = testing::normal(static_cast<std::size_t>(T * query_heads * 32), 5, 2);
  const gpu::CacheView whole = cache->view();
  for (const int count : {1, 2, 3, 4}) {
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const testing::ShardOfCache shard(whole, ranks.shard());
      std::vector<float> out(queries.size());
      const offload::Store none(arena, {1, 2, 32, 64});
      MethodScratch scratch;
      const LayerStep at{*backend, {}, 0, shard.view(), none, query_heads, T, scratch};
      cluster::rank_attender(ranks)->attend_causal(at, queries.data(), T, {}, out.data());
      for (const int t : {0, 1, 37, T - 1}) {
        for (int head = 0; head < query_heads; ++head) {
          const std::int64_t first = (std::int64_t{t} * query_heads + head) * 32;
          const auto expected = testing::attention(*cache, kv_head(head), queries.data() + first,
                                                   testing::range(0, whole.tokens() - T + t + 1));
          for (int i = 0; i < 32; ++i) {
            ASSERT_NEAR(out[static_cast<std::size_t>(first + i)], expected.y[static_cast<std::size_t>(i)],
                        expected.tolerance)
                << count << " ranks, token " << t << ", head " << head;
          }
        }
      }
    });
  }
}

TEST_F(OverRanksTest, MethodsThatDoNotAttendOverRanksAreRefusedByName) {
  register_method("over_ranks_test", [](const MethodOptions& options) { return make_topk(options); });
  EXPECT_TRUE(test::refuses([&] { cluster::require_over_ranks(parse_method("over_ranks_test:k=8", {})); },
                            {"--attn over_ranks_test", "one's own", "over ranks", "topk"}));
  for (const char* text :
       {"dense", "window", "topk", "topk:engine=faiss", "sparq", "sparq:by=qk", "planes", "flexgen", "lowrank", "pages",
        "oracle", "auto", "h2o", "ann", "planes:rest=draw", "topk:rest=calibrated"})
    EXPECT_NO_THROW(cluster::require_over_ranks(parse_method(text, {})));
}

TEST_F(OverRanksTest, CachesThatAMethodCannotShareAreRefused) {
  CacheOptions small;
  small.block_tokens = 16;
  EXPECT_TRUE(test::refuses([&] { cluster::require_over_ranks(parse_method("pages:page=32", {}), small); },
                            {"--attn pages", "--block-tokens", "32"}));
  EXPECT_NO_THROW(cluster::require_over_ranks(parse_method("pages:page=16", {}), small));
  CacheOptions integers;
  integers.columns = ColumnFormat::int8;
  EXPECT_TRUE(
      test::refuses([&] { cluster::require_over_ranks(parse_method("flexgen", {}), integers); }, {"--columns f16"}));
}

}  // namespace
}  // namespace hayloft::runtime
