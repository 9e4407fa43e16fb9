#include "runtime/context/saved_shards.h"

#include <cmath>
#include <cstring>

#include "offload/snapshot/shards.h"
#include "tests/runtime/context/saved_shards_fixture.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/refusal.h"

// Contexts that ranks save in shards and other numbers of ranks open.
namespace hayloft::runtime {
namespace {

using cluster::Communicator;
using test::refuses;

TEST_F(SavedShardsTest, ShardsHoldTheContextOfOneMachine) {
  // One global layer behind sliding-window ones: its keys and values do not depend on how attention is merged.
  const std::string alone = one_go();
  for (const int count : {2, 3, 4}) {
    const fs::path path = folder.path() / fmt::format("of-{}.hay", count);
    const IngestResult result = save(count, path);
    EXPECT_EQ(digest(path), alone) << count;
    EXPECT_EQ(offload::Snapshot::open(path).files(), count);
    EXPECT_EQ(shards(path).size(), static_cast<std::size_t>(count));
    EXPECT_EQ(result.read, result.tokens);
    std::uintmax_t bytes = fs::file_size(path);
    for (const fs::path& shard : shards(path)) bytes += fs::file_size(shard);
    EXPECT_EQ(result.file_bytes, bytes);
  }
}

TEST_F(SavedShardsTest, AnyNumberOfRanksOpensThem) {
  one_go();
  const fs::path one = folder.path() / "one.hay";
  save(3, context);
  const std::vector<float> alone =
      answer(open_context(source, arena, offload::Snapshot::open(context), options.session));
  EXPECT_EQ(alone, answer(open_context(source, arena, offload::Snapshot::open(one), options.session)));
  for (const int count : {1, 2, 3, 4, 5}) {
    const auto from_shards = answers(count, context);
    for (const auto& rank : from_shards) EXPECT_EQ(rank, from_shards.front()) << count << ": ranks part";
    // As many ranks merge in the same order, wherever their blocks lay.
    EXPECT_EQ(from_shards, answers(count, one)) << count;
    float largest = 0;
    for (const float x : alone) largest = std::max(largest, std::fabs(x));
    for (std::size_t i = 0; i < alone.size(); ++i) {
      ASSERT_NEAR(from_shards.front()[i], alone[i], largest / 1024) << count;
    }
  }
}

// Two global layers behind recurrent ones, whose states are saved too.
class HybridSavedShardsTest : public SavedShardsTest {
 protected:
  HybridSavedShardsTest()
      : SavedShardsTest([](const fs::path& at) { return test::write_hybrid_model(at, {.layers = 8}); }) {}
};

TEST_F(HybridSavedShardsTest, ReopenedShardsAnswerAsRanksThatNeverSavedThem) {
  save(3, context);
  std::vector<std::vector<float>> never_saved(3);
  cluster::run_local_ranks(3, [&](Communicator& ranks) {
    Session session(model, arena, of(ranks).session);
    session.append(tokenizer.encode_prompt(text));
    never_saved[static_cast<std::size_t>(ranks.rank())] = answer(std::move(session));
  });
  EXPECT_EQ(answers(3, context), never_saved);
}

TEST_F(SavedShardsTest, PlanesAreChosenByTheSpreadOfAllBlocks) {
  options.session.cache.columns = offload::ColumnFormat::planes;
  save(3, context);
  const auto method = make_method(parse_method("planes:bits=40:k=12", {}), model.config().head_dim);
  for (const int count : {2, 3, 4}) {
    std::vector<std::vector<float>> never_saved(static_cast<std::size_t>(count)), reopened = never_saved;
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      Session session(model, arena, of(ranks).session);
      session.append(tokenizer.encode_prompt(text));
      never_saved[static_cast<std::size_t>(ranks.rank())] = session.set_method(method).step(7);
      Session again = open_context(source, arena, open_over_ranks(ranks, context), of(ranks).session);
      reopened[static_cast<std::size_t>(ranks.rank())] = again.set_method(method).step(7);
    });
    EXPECT_EQ(reopened, never_saved) << count;
  }
}

TEST_F(HybridSavedShardsTest, TheDigestIsThatOfTheSameRanksHoweverTheyAreOpened) {
  save(3, context);
  const fs::path again = folder.path() / "again.hay";
  save(3, again);
  EXPECT_EQ(digest(again), digest(context));
  for (const int count : {2, 3, 4}) {
    for (int rank = 0; rank < count; ++rank) {
      offload::Snapshot::open(context, offload::Snapshot::Accept::complete, {rank, count}).verify();
    }
  }
}

TEST_F(SavedShardsTest, ARankNeedsItsOwnShardAlone) {
  save(3, context);
  const std::vector<fs::path> all = shards(context);
  for (int rank = 0; rank < 3; ++rank) {
    const fs::path elsewhere = folder.path() / "elsewhere";
    fs::create_directory(elsewhere);
    fs::copy_file(context, elsewhere / "ctx.hay");
    const fs::path& own = all[static_cast<std::size_t>(rank)];
    fs::copy_file(own, elsewhere / own.filename());
    const auto part = offload::Snapshot::open(elsewhere / "ctx.hay", offload::Snapshot::Accept::complete, {rank, 3});
    EXPECT_GT(part.stored_tokens(0), 0);
    EXPECT_TRUE(refuses([&] { offload::Snapshot::open(elsewhere / "ctx.hay"); }, {"of3", "is not there"}));
    fs::remove_all(elsewhere);
  }
}

TEST_F(SavedShardsTest, IntegerFormatsAreDealtAgainAsTheyWere) {
  for (const auto columns : {offload::ColumnFormat::int8, offload::ColumnFormat::planes}) {
    const fs::path path = folder.path() / fmt::format("{}.hay", offload::name(columns));
    options.session.cache.columns = columns;
    options.session.cache.rows = offload::RowFormat::int8;
    options.session.cache.block_tokens = 64;
    save(2, path);
    const offload::Snapshot whole = offload::Snapshot::open(path);
    whole.verify();
    const offload::Store store = whole.store(arena);
    for (const int count : {2, 3}) {
      std::int64_t tokens = 0;
      for (int rank = 0; rank < count; ++rank) {
        const auto part = offload::Snapshot::open(path, offload::Snapshot::Accept::complete, {rank, count});
        part.verify();
        const offload::Store own = part.store(arena);
        tokens += own.tokens(0);
        for (std::size_t i = 0; i < own.layer(0).blocks.size(); ++i) {
          const std::size_t block = i * static_cast<std::size_t>(count) + static_cast<std::size_t>(rank);
          EXPECT_EQ(std::memcmp(own.layer(0).blocks[i], store.layer(0).blocks[block], store.layout().block_bytes), 0);
        }
      }
      EXPECT_EQ(tokens, store.tokens(0));
    }
  }
}

TEST_F(SavedShardsTest, WhatIsNotWholeIsNamed) {
  save(2, context);
  const std::vector<fs::path> all = shards(context);
  const std::string second = all[1].filename();
  const auto open = [&] { offload::Snapshot::open(context).verify(); };
  EXPECT_TRUE(refuses([&] { offload::Snapshot::open(all[1]); }, {second, "rank 1 of 2", "manifest"}));
  EXPECT_TRUE(refuses([&] { offload::SnapshotWriter::open_to_append(context); }, {"ctx.hay", "in shards"}));

  const fs::path kept = folder.path() / "kept";
  fs::copy_file(all[1], kept);
  const auto restore = [&] { fs::copy_file(kept, all[1], fs::copy_options::overwrite_existing); };
  flip(all[1], 3 * 4096);  // a block
  EXPECT_TRUE(refuses(open, {second, "damaged"}));
  restore();
  fs::resize_file(all[1], fs::file_size(all[1]) - 4096);
  EXPECT_TRUE(refuses(open, {second, "truncated"}));
  fs::copy_file(all[0], all[1], fs::copy_options::overwrite_existing);
  EXPECT_TRUE(refuses(open, {second, "another context"}));
  const fs::path other = folder.path() / "other.hay";
  save(2, other);
  fs::copy_file(shards(other)[1], all[1], fs::copy_options::overwrite_existing);
  EXPECT_TRUE(refuses(open, {second, "another context"}));
  fs::remove(all[1]);
  EXPECT_TRUE(refuses(open, {second, "is not there"}));
  EXPECT_TRUE(refuses([&] { answers(2, context); }, {"rank 1: ", second, "is not there"}));
  restore();
  open();

  for (std::size_t byte = 0; byte < offload::manifest_bytes; ++byte) {
    flip(context, byte);
    EXPECT_TRUE(refuses(open, {"ctx.hay"})) << byte;
    flip(context, byte);
  }
  fs::resize_file(context, offload::manifest_bytes - 1);
  EXPECT_TRUE(refuses(open, {"ctx.hay", "too early"}));
}

TEST_F(SavedShardsTest, ALyingManifestIsFoundOut) {
  save(2, context);
  const auto manifest = *offload::read_manifest(context);
  const auto say = [&](const offload::ShardManifest& lie) {
    const auto bytes = offload::encode_manifest(lie);
    std::ofstream(context, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto lies = [&](auto change, std::initializer_list<std::string> parts) {
    offload::ShardManifest lie = manifest;
    change(lie);
    say(lie);
    return refuses([&] { offload::Snapshot::open(context); }, parts);
  };
  EXPECT_TRUE(lies([](auto& m) { m.shards = 3; }, {"1of3", "is not there"}));
  EXPECT_TRUE(lies([](auto& m) { m.shards = 1 << 30; }, {"1073741824 shards"}));
  EXPECT_TRUE(lies([](auto& m) { m.shards = 1; }, {"1 shards"}));
  EXPECT_TRUE(lies([](auto& m) { ++m.tokens; }, {"1of2", "run again"}));
  EXPECT_TRUE(lies([](auto& m) { m.tokens = -1; }, {"-1 tokens"}));
  EXPECT_TRUE(lies([](auto& m) { m.fingerprint[3] ^= 1; }, {"1of2", "another context"}));
  EXPECT_TRUE(lies([](auto& m) { ++m.saving; }, {"1of2", "is not there"}));
  say(manifest);
  offload::Snapshot::open(context).verify();
}

TEST_F(SavedShardsTest, WhatCannotBeSavedLeavesNothing) {
  // Rank 1 has no folder to write to.
  const auto apart = [&] {
    cluster::run_local_ranks(2, [&](Communicator& ranks) {
      const fs::path path = ranks.rank() == 0 ? context : folder.path() / "missing" / "ctx.hay";
      ingest(source, arena, text, path, of(ranks));
    });
  };
  EXPECT_TRUE(refuses(apart, {"rank 1: ", "missing"}));
  EXPECT_FALSE(fs::exists(context));
  EXPECT_TRUE(shards(context).empty());
  save(2, context);
  EXPECT_TRUE(refuses([&] { save(2, context); }, {"ctx.hay", "exists already"}));
  EXPECT_TRUE(refuses([&] { save(3, context); }, {"ctx.hay", "exists already"}));
}

}  // namespace
}  // namespace hayloft::runtime
