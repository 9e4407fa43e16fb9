#include <atomic>

#include "tests/runtime/context/shard_parts_fixture.h"
#include "tests/support/hybrid_model.h"

// Readings that are ended before their end.
namespace hayloft::runtime {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kills_apart = 9;  // instrumented code takes twenty times as long, and each kill goes the same ways
#else
constexpr int kills_apart = 3;
#endif

TEST_F(ShardPartsTest, WhereverARankIsKilledAllGoOnFromTheCheckpointThatEverybodyHas) {
  const std::string expected = one_go();
  int uneven = 0;
  for (const int killed : {0, 1, 2}) {
    for (int call = killed; call < 14; call += kills_apart) {
      // Killed behind a checkpoint each time: run again and again the same text comes to its end.
      int runs = 0;
      while (!survives(3, killed, 24 + call, saving(text)) && ++runs < 200) {
        EXPECT_FALSE(fs::exists(context));
        uneven += sequence(killed, 3) != sequence((killed + 1) % 3, 3) ? 1 : 0;
      }
      EXPECT_GT(runs, 3);
      expect_whole(expected, 3);
      remove_context();
    }
  }
  EXPECT_GT(uneven, 30 / kills_apart) << "ranks were killed with the same checkpoints all the time";
}

TEST_F(ShardPartsTest, AKillBeforeTheFirstCheckpointLosesNothing) {
  const std::string expected = one_go();
  for (const int killed : {0, 1}) {
    for (int call = 0; call < 12; ++call) survives(2, killed, call, saving(text));
    run(2, saving(text));
    expect_whole(expected, 2);
    remove_context();
  }
}

TEST_F(ShardPartsTest, FinishedShardsGetTheManifestThatWasNotWrittenAnyMore) {
  run(3, saving(text));
  const std::string expected = digest(context);
  const std::vector<fs::path> before = shards(context);
  fs::remove(context);
  const IngestResult again = run(3, saving(text));
  EXPECT_EQ(again.resumed_from, again.tokens / 48 * 48);
  expect_whole(expected, 3);
  EXPECT_EQ(shards(context), before);

  // One of them had not got its name yet.
  fs::remove(context);
  fs::rename(before[1], part(1, 3));
  run(3, saving(text));
  expect_whole(expected, 3);

  fs::remove(context);
  EXPECT_TRUE(refuses([&] { run(3, saving("Another text.")); }, {"1of3", "another text", "remove"}));
  EXPECT_TRUE(refuses([&] { run(2, saving(text)); }, {"1of3", "over 3 ranks", "mpirun -n 3"}));
  EXPECT_TRUE(refuses([&] { ingest(source, arena, text, context, options); }, {"1of3", "over 3 ranks"}));
  fs::remove(before[2]);
  EXPECT_TRUE(refuses([&] { run(3, saving(text)); }, {"rank 2: ", "3of3", "not there"}));
}

TEST_F(ShardPartsTest, WhatAllKeptIsGoneOnWithWhereTheFirstWasStopped) {
  const std::string expected = one_go();
  options.checkpoint_seconds = 1e9;  // none but that one
  const auto stop_at = [&](std::int64_t tokens) {
    std::atomic<int> stopped = 0;
    cluster::run_local_ranks(2, [&](Communicator& ranks) {
      const auto show = [&](std::int64_t done, std::int64_t) {
        if (ranks.rank() == 0 && done >= tokens) throw Stopped();
      };
      try {
        ingest(source, arena, text, context, of(ranks), show);
      } catch (const StoppedTogether& kept) {
        EXPECT_EQ(kept.tokens, tokens);
        ++stopped;
      }
    });
    EXPECT_EQ(stopped, 2);
  };
  stop_at(0);
  stop_at(96);
  stop_at(480);
  EXPECT_EQ(run(2, saving(text)).resumed_from, 480);
  expect_whole(expected, 2);
}

TEST_F(ShardPartsTest, PartsThatDoNotGoTogetherAreRefused) {
  EXPECT_FALSE(survives(2, 1, 60, saving(text)));
  const std::string other = "Another text. " + text;
  EXPECT_TRUE(refuses([&] { run(2, saving(other)); }, {"part.1of2", "another text"}));
  EXPECT_TRUE(refuses([&] { run(3, saving(text)); }, {"part.1of2", "over 2 ranks", "mpirun -n 2", "remove"}));
  EXPECT_TRUE(refuses([&] { ingest(source, arena, text, context, options); }, {"part.1of2", "over 2 ranks"}));
  const ModelSource another = another_model();
  const auto by_another = [&](const IngestOptions& own) { return ingest(another, arena, text, context, own); };
  EXPECT_TRUE(refuses([&] { run(2, by_another); }, {"part.1of2", "made with the model"}));

  const fs::path kept = folder.path() / "kept";
  fs::rename(part(1, 2), kept);
  EXPECT_TRUE(refuses([&] { run(2, saving(text)); }, {"rank 1: ", "part.2of2", "not there", "anew"}));
  fs::copy_file(part(0, 2), part(1, 2));
  EXPECT_TRUE(refuses([&] { run(2, saving(text)); }, {"rank 1: ", "part.2of2", "blocks"}));
  fs::remove(part(1, 2));
  fs::rename(kept, part(1, 2));
  run(2, saving(text));
  expect_whole(one_go(), 2);

  // Nor what one process has begun.
  remove_context();
  std::ofstream(context.string() + ".part") << "x";
  EXPECT_TRUE(refuses([&] { run(2, saving(text)); }, {"ctx.hay.part", "without mpirun", "remove"}));
}

// Two global layers behind recurrent ones, whose states are saved too.
class HybridShardPartsTest : public ShardPartsTest {
 protected:
  HybridShardPartsTest()
      : ShardPartsTest([](const fs::path& at) { return test::write_hybrid_model(at, {.layers = 8}); }) {}
};

TEST_F(HybridShardPartsTest, StatesGoOnWithTheirShards) {
  run(2, saving(text));
  const std::string expected = digest(context);
  EXPECT_FALSE(offload::Snapshot::open(context).earlier_checkpoints().empty());
  remove_context();
  while (!survives(2, 1, 70, saving(text))) {
  }
  expect_whole(expected, 2);
  remove_context();
  run(2, saving(first(text.size() / 2)));
  run(2, appending(rest(text.size() / 2)));
  expect_whole(expected, 2);
}

}  // namespace
}  // namespace hayloft::runtime
