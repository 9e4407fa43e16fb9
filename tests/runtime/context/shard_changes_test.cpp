#include "tests/runtime/context/shard_parts_fixture.h"

// Appends to contexts in shards, and updates of them, that are ended before their end.
namespace hayloft::runtime {
namespace {

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
  EXPECT_TRUE(refuses([&] { add_indices(source, arena, shard, options); }, {"one shard", "index"}));
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

  // The two texts have the same length: no reader may take some shards of the one text and some of the other.
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

}  // namespace
}  // namespace hayloft::runtime
