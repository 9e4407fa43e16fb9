#include <unistd.h>

#include <atomic>

#include "offload/snapshot/shards.h"
#include "tests/runtime/decode/prefill/saved_shards_fixture.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/refusal.h"

// Readings of ranks that are ended before their end, and go on.
namespace hayloft::runtime {
namespace {

using offload::SnapshotWriter;
using test::refuses;

struct Killed {};

class ShardPartsTest : public SavedShardsTest {
 protected:
  using SavedShardsTest::SavedShardsTest;
  ShardPartsTest() = default;
  using Read = std::function<IngestResult(const IngestOptions& options)>;

  Read saving(const std::string& what) {
    return [this, what](const IngestOptions& own) { return ingest(source, arena, what, context, own); };
  }
  Read appending(const std::string& what) {
    return [this, what](const IngestOptions& own) { return append_to(source, arena, what, context, own); };
  }
  Read updating(const std::string& what) {
    return [this, what](const IngestOptions& own) { return update(source, arena, what, context, own); };
  }

  // Of rank 0.
  IngestResult run(int count, const Read& read) {
    IngestResult result;
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const IngestResult own = read(of(ranks));
      if (ranks.rank() == 0) result = own;
    });
    return result;
  }

  // The rank is gone before the call of this number, from 0 on, by which it would have changed its file. Whether all
  // came to their end.
  bool survives(int count, int killed, int call, const Read& read) {
    try {
      cluster::run_local_ranks(count, [&](Communicator& ranks) {
        IngestOptions own = of(ranks);
        int left = ranks.rank() == killed ? call : -1;
        const auto counted = [&left] {
          if (left-- == 0) throw Killed();
        };
        own.calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) {
          counted();
          return ::pwrite(descriptor, data, bytes, offset);
        };
        own.calls.sync = [&](int) {
          counted();
          return 0;
        };
        read(own);
      });
    } catch (const Killed&) {
      return false;
    }
    return true;
  }

  fs::path part(int rank, int count) const { return offload::growing_shard_path(context, {rank, count}); }
  std::uint64_t sequence(int rank, int count) const {
    if (!fs::exists(part(rank, count))) return 0;
    return SnapshotWriter::open_to_append(part(rank, count)).sequence();
  }
  void expect_whole(const std::string& expected, int count) {
    EXPECT_EQ(digest(context), expected);
    EXPECT_EQ(shards(context).size(), static_cast<std::size_t>(count)) << "something is left";
  }
  std::string anew(const std::string& what) {
    const fs::path path = folder.path() / "anew.hay";
    fs::remove(path);
    ingest(source, arena, what, path, options);
    return digest(path);
  }
  void remove_context() {
    for (const fs::path& shard : shards(context)) fs::remove(shard);
    fs::remove(context);
  }
  std::string first(std::size_t near) const { return text.substr(0, text.find(". ", near) + 1); }
  std::string rest(std::size_t near) const { return text.substr(text.find(". ", near) + 1); }
};

TEST_F(ShardPartsTest, WhereverARankIsKilledAllGoOnFromTheCheckpointThatEverybodyHas) {
  const std::string expected = one_go();
  int uneven = 0;
  for (const int killed : {0, 1, 2}) {
    for (int call = killed; call < 14; call += 3) {
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
  EXPECT_GT(uneven, 10) << "ranks were killed with the same checkpoints all the time";
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

TEST_F(ShardPartsTest, MoreTextBehindShardsEndsInTheContextOfOneMachine) {
  const std::string expected = one_go();
  for (const std::size_t near : {std::size_t{1}, text.size() / 3, text.size() - 40}) {
    run(3, saving(first(near)));
    EXPECT_TRUE(refuses([&] { run(2, appending(rest(near))); }, {"3 shards", "not 2"}));
    run(3, appending(rest(near)));
    expect_whole(expected, 3);
    EXPECT_TRUE(run(3, appending(rest(near))).was_there);
    expect_whole(expected, 3);
    remove_context();
  }
  EXPECT_TRUE(refuses([&] { run(2, appending(text)); }, {"rank 0: ", "ctx.hay", "not there"}));
  ingest(source, arena, text, context, options);
  EXPECT_TRUE(refuses([&] { run(2, appending(text)); }, {"rank 0: ", "ctx.hay", "no context in shards", "alone"}));
}

TEST_F(ShardPartsTest, AnAppendThatIsKilledLeavesTheOldContextOrOneThatIsGoneOnWith) {
  const std::string before_text = first(text.size() * 4 / 5), more = rest(text.size() * 4 / 5);
  const std::string expected = one_go(), before = anew(before_text);
  for (const double seconds : {0.0, 1e9}) {  // many checkpoints, and a single one
    for (const int killed : {0, 1}) {
      options.checkpoint_seconds = seconds;
      run(2, saving(before_text));
      int call = 0;
      int refused = 0;
      while (!survives(2, killed, call, appending(more))) {
        call += seconds == 0 ? 3 : 1;
        try {
          const std::string now = digest(context);
          EXPECT_TRUE(now == before || now == expected) << call;
        } catch (const Error&) {
          ++refused;
        }
      }
      EXPECT_EQ(refused > 0, seconds == 0) << refused;
      expect_whole(expected, 2);
      EXPECT_TRUE(run(2, appending(more)).was_there);
      expect_whole(expected, 2);
      remove_context();
    }
  }
}

TEST_F(ShardPartsTest, AnAppendWithoutItsManifestIsBroughtToItsEndBeforeAnother) {
  run(2, saving(text));
  const std::string sequel = " And then it was late.";
  const fs::path before = context.parent_path() / "manifest before";
  fs::copy_file(context, before);
  run(2, appending(sequel));
  const std::string expected = digest(context);
  const auto lose_manifest = [&] { fs::copy_file(before, context, fs::copy_options::overwrite_existing); };

  lose_manifest();
  EXPECT_TRUE(refuses([&] { run(2, appending(" Something else.")); }, {"another text was being added"}));
  run(2, appending(sequel));
  expect_whole(expected, 2);

  lose_manifest();
  options.again = true;  // what is there without its manifest is this one, not one before it
  run(2, appending(sequel));
  expect_whole(expected, 2);
}

TEST_F(ShardPartsTest, AShardIsNoContext) {
  run(2, saving(text));
  const fs::path shard = shards(context)[0];
  EXPECT_TRUE(refuses([&] { append_to(source, arena, "More.", shard, options); }, {"one shard"}));
  EXPECT_TRUE(refuses([&] { update(source, arena, "Another text.", shard, options); }, {"one shard"}));
}

TEST_F(ShardPartsTest, AChangedTextIsReadFromTheLastCheckpointBeforeTheChange) {
  options.checkpoints = 64;
  std::string changed = text;
  changed.replace(text.find("482913"), 6, "111111");
  const std::string expected = anew(changed), old = anew(text);
  run(2, saving(text));
  offload::Snapshot::open(context).verify();
  options.checkpoints = 0;
  const IngestResult result = run(2, updating(changed));
  EXPECT_GT(result.resumed_from, 0);
  EXPECT_LE(result.resumed_from, result.same);
  expect_whole(expected, 2);
  EXPECT_TRUE(run(2, updating(changed)).was_there);

  // Of the same length: no reader may take some shards of the one text and some of the other.
  for (const int killed : {0, 1}) {
    int call = 0;
    while (!survives(2, killed, call, updating(text))) {
      call += 5;
      try {
        const std::string now = digest(context);
        EXPECT_TRUE(now == expected || now == old) << call;
      } catch (const Error&) {
      }
    }
    expect_whole(old, 2);
    run(2, updating(changed));
    expect_whole(expected, 2);
  }
}

TEST_F(ShardPartsTest, ATextThatHasChangedAtItsBeginningIsReadAnewBesideTheOldOne) {
  run(2, saving(text));
  const std::string old = digest(context);
  const std::string changed = "Not so. " + text, expected = anew(changed);
  for (int call = 30; !survives(2, 1, call, updating(changed)); call += 7) {
    EXPECT_EQ(digest(context), old);
  }
  expect_whole(expected, 2);
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
