#include "tests/runtime/attention/over_ranks_fixture.h"

// Searches by Faiss and indices over ranks, each of which has its own.
namespace hayloft::runtime {
namespace {

TEST_F(OverRanksTest, SearchesByFaissSelectAsOneMachine) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8}) {
    for (const int group : {1, 3}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 11 * 64, .tail = 100, .rows = rows}, group);
      for (const char* text : {"topk:k=40:engine=faiss", "topk:k=300:engine=faiss"}) {
        expect_as_alone(text, false, true);
      }
    }
  }
}

// Two ranks have an index each; of three and four each has too few keys for one, and compares all.
TEST_F(OverRanksTest, IndicesThatLookEverywhereFindWhatTopKFinds) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8}) {
    make({.kv_heads = 2,
          .head_dim = 32,
          .block_tokens = 1024,
          .stored = 18 * 1024,
          .tail = 45,
          .seed = 3,
          .rows = rows});
    const Output topk = attend("topk:k=40");
    for (const char* text : {"ann:Flat:k=40", "ann:IVF64,Flat:nprobe=64:k=40", "ann:SQfp16:rerank=4:k=40"}) {
      for (const int count : {1, 2, 3, 4}) {
        for (const RankOutput& output : attend_over(count, text)) {
          EXPECT_EQ(output.trace.positions, topk.trace.positions) << text << " over " << count;
          expect_consistent(output, false);
        }
      }
    }
    expect_as_alone("ann:Flat:k=40", false, true);
  }
}

// By codes each rank finds what is best by its own codes; of that the best by their keys are taken.
TEST_F(OverRanksTest, RanksAgreeOnWhatTheirIndicesHaveFound) {
  make({.kv_heads = 2, .head_dim = 32, .block_tokens = 1024, .stored = 27 * 1024, .tail = 45, .key_structure = true});
  const Output alone = attend("ann:IVF64,SQ8:nprobe=4:k=40");
  for (const int count : {2, 3}) {
    const std::vector<RankOutput> outputs = attend_over(count, "ann:IVF64,SQ8:nprobe=4:k=40");
    for (const RankOutput& output : outputs) {
      EXPECT_EQ(output.trace.positions, outputs.front().trace.positions);
      EXPECT_EQ(output.y, outputs.front().y);
      EXPECT_EQ(output.counters.bytes, outputs.front().counters.bytes) << "what all of them have read";
      EXPECT_EQ(output.counters.positions_scored, outputs.front().counters.positions_scored);
      expect_consistent(output, false);
    }
    // A centroid, whose lists are looked into on every rank, is read on every rank.
    EXPECT_GT(outputs.front().counters.at(Place::near, Kind::index), alone.counters.at(Place::near, Kind::index));
  }
}

// Compares how many of the exact top k the indices of three ranks find with the index of one machine: by default a
// sixteenth of all lists, which for three ranks are other and shorter ones.
TEST_F(OverRanksTest, RanksFindAsMuchByTheirIndicesAsOneMachine) {
  constexpr int k = 64, queries = 12, count = 3;
  make({.kv_heads = 2, .head_dim = 32, .block_tokens = 1024, .stored = 27 * 1024, .tail = 45, .key_structure = true});
  std::vector<std::vector<float>> asked;
  std::vector<std::vector<std::int32_t>> exact;
  const auto by = method("ann:k=64");
  const auto index = state_of(*by);
  const auto common = [](const std::vector<std::int32_t>& found, const std::vector<std::int32_t>& truth) {
    int both = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto list = truth.begin() + static_cast<std::ptrdiff_t>(i / k * k);
      both += std::binary_search(list, list + k, found[i]);
    }
    return both;
  };
  int alone = 0, all = 0;
  for (int i = 0; i < queries; ++i) {
    q = testing::normal(q.size(), static_cast<unsigned>(i + 20), 2);
    asked.push_back(q);
    exact.push_back(attend("topk:k=64").trace.positions);
    all += static_cast<int>(exact.back().size());
    alone += common(attend(*by, index.get()).trace.positions, exact.back());
  }
  std::vector<int> over(count);
  const gpu::CacheView whole = cache->view();
  cluster::run_local_ranks(count, [&](Communicator& ranks) {
    const testing::ShardOfCache shard(whole, ranks.shard());
    const auto own = by->make_state({1, query_heads, whole.kv_heads, whole.head_dim}, *backend);
    own->sync_with_cache({&shard.view(), 1}, {});
    for (int i = 0; i < queries; ++i) {
      Output output;
      output.y.resize(q.size());
      take_step(*by, own.get(), shard.view(), *cluster::rank_attender(ranks), output,
                asked[static_cast<std::size_t>(i)].data());
      over[static_cast<std::size_t>(ranks.rank())] +=
          common(output.trace.positions, exact[static_cast<std::size_t>(i)]);
    }
  });
  // Two counts out of so many, each position found with the same probability, differ by three standard deviations once
  // in 370 seeds.
  const double found = alone, most = all;
  const double margin = 3 * std::sqrt(2 * found * (most - found) / most);
  RecordProperty("recall", fmt::format("alone {} of {}, over {} ranks {}", alone, all, count, over[0]));
  EXPECT_LT(alone, all) << "an index that finds everything shows nothing";
  EXPECT_GE(over[0], found - margin) << "of " << all << ", alone " << alone;
  EXPECT_EQ(over[1], over[0]);
  EXPECT_EQ(over[2], over[0]);
}

// An index that was saved by one machine is over all blocks, in whose positions a rank's own mean something else.
TEST_F(OverRanksTest, AnIndexOfTheWholeContextIsBuiltAnewOverOwnBlocks) {
  make({.kv_heads = 2, .head_dim = 32, .block_tokens = 1024, .stored = 18 * 1024, .tail = 45, .key_structure = true});
  const auto by = method("ann:IVF64,Flat:nprobe=8:k=40");
  const auto state = state_of(*by);
  const AttentionShape shape{1, query_heads, cache->shape().kv_heads, cache->shape().head_dim};
  std::vector<float> seen = testing::normal(q.size(), 77);
  state->see_queries(cache->view(), seen.data(), 1);
  const std::vector<std::byte> saved = state->save();
  const testing::ShardOfCache shard(cache->view(), {1, 2});
  const auto wrong = by->load_state(shape, *backend, saved);
  EXPECT_TRUE(test::refuses([&] { wrong->sync_with_cache({&shard.view(), 1}, {}); }, {"do not belong together"}));
  const auto restored = by->load_state(shape, *backend, saved);
  restored->forget_store();
  restored->sync_with_cache({&shard.view(), 1}, {});
  const auto fresh = by->make_state(shape, *backend);
  fresh->see_queries(cache->view(), seen.data(), 1);
  fresh->sync_with_cache({&shard.view(), 1}, {});
  EXPECT_EQ(restored->save(), fresh->save()) << "with the queries that were seen";
}

}  // namespace
}  // namespace hayloft::runtime
