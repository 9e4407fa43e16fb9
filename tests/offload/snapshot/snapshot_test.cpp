#include "offload/snapshot/snapshot.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>

#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/saved_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using test::bytes_of;
using test::refuses;

TEST_F(SnapshotTest, WhatIsSavedIsFoundAgainBitForBit) {
  SmallContext context(arena_);
  context.grow_to(100);
  const auto part = folder_ / "ctx.hay.part";
  SnapshotWriter writer = SnapshotWriter::create(part, small_description());
  context.save(writer);
  writer.finish(folder_ / "ctx.hay");
  EXPECT_FALSE(std::filesystem::exists(part));

  const Snapshot snapshot = Snapshot::open(folder_ / "ctx.hay");
  EXPECT_TRUE(snapshot.complete());
  EXPECT_EQ(snapshot.description(), small_description());
  EXPECT_EQ(snapshot.token_count(), 100);
  EXPECT_EQ(snapshot.finished_tokens(), 100);
  EXPECT_EQ(snapshot.tokens(), context.tokens());
  EXPECT_EQ(snapshot.file_bytes(), std::filesystem::file_size(folder_ / "ctx.hay"));
  snapshot.verify();

  const Store store = snapshot.store(arena_);
  for (int layer = 0; layer < 2; ++layer) {
    const LayerView was = context.store().layer(layer);
    const LayerView is = store.layer(layer);
    ASSERT_EQ(is.tokens, was.tokens);
    EXPECT_EQ(snapshot.stored_tokens(layer), was.tokens);
    ASSERT_EQ(is.blocks.size(), was.blocks.size());
    ASSERT_GT(is.blocks.size(), 1u);
    for (std::size_t i = 0; i < is.blocks.size(); ++i) {
      EXPECT_EQ(std::memcmp(is.blocks[i], was.blocks[i], store.layout().block_bytes), 0);
    }
    EXPECT_TRUE(std::equal(is.value_sum.begin(), is.value_sum.end(), was.value_sum.begin()));
    const auto exact = store.exact_value_sum(layer);
    EXPECT_TRUE(std::equal(exact.begin(), exact.end(), context.store().exact_value_sum(layer).begin()));
  }
  const std::vector<TailImage> tails = context.tails();
  for (int layer = 0; layer < test::kModelLayers; ++layer) {
    const SnapshotTail tail = snapshot.tail(layer);
    const TailImage& was = tails[static_cast<std::size_t>(layer)];
    EXPECT_EQ(tail.store_layer, was.store_layer);
    EXPECT_EQ(tail.position, was.position);
    EXPECT_EQ(tail.tokens, was.tokens);
    EXPECT_TRUE(std::equal(tail.rows.begin(), tail.rows.end(), was.rows.begin(), was.rows.end()));
  }
}

TEST_F(SnapshotTest, WhatIsOpenedAgainWhileItIsInUseLiesInTheSameMemory) {
  const auto path = saved(100, 100);
  const Store first = Snapshot::open(path).store(arena_);
  const Store second = Snapshot::open(path).store(arena_);
  ASSERT_FALSE(first.layer(0).blocks.empty());
  EXPECT_EQ(first.layer(0).blocks[0], second.layer(0).blocks[0]);
  EXPECT_NE(first.layer(0).serials[0], second.layer(0).serials[0]);
}

TEST_F(SnapshotTest, TheDigestIsThatOfTheContentAndNotOfItsHistory) {
  const std::string in_memory = digest_of(100);
  EXPECT_EQ(Snapshot::open(saved(100, 100, "once.hay")).content_digest(), in_memory);
  EXPECT_EQ(Snapshot::open(saved(100, 7, "often.hay")).content_digest(), in_memory);
  EXPECT_NE(bytes_of(folder_ / "once.hay"), bytes_of(folder_ / "often.hay"));
  EXPECT_NE(Snapshot::open(saved(101, 101, "longer.hay")).content_digest(), in_memory);
}

TEST_F(SnapshotTest, AContextGrowsInManyCheckpointsAndAcrossWriters) {
  const auto part = folder_ / "ctx.hay.part";
  {
    SmallContext context(arena_);
    SnapshotWriter writer = SnapshotWriter::create(part, small_description());
    for (const std::int64_t tokens : {3, 40, 41}) {
      context.grow_to(tokens);
      context.save(writer);
      EXPECT_EQ(writer.token_count(), tokens);
    }
    context.grow_to(60);  // never saved
  }
  SnapshotWriter writer = SnapshotWriter::open_to_append(part);
  std::optional<SmallContext> context(std::in_place, arena_, writer.snapshot());
  EXPECT_EQ(context->digest(), digest_of(41));
  context->grow_to(75);
  context->save(writer);
  EXPECT_EQ(context->digest(), writer.snapshot().content_digest());
  context->grow_to(90);
  context->save(writer);
  writer.finish(folder_ / "ctx.hay");
  const Snapshot snapshot = Snapshot::open(folder_ / "ctx.hay");
  snapshot.verify();
  EXPECT_EQ(snapshot.content_digest(), digest_of(90));
}

std::string text_of(std::optional<std::span<const std::byte>> bytes) {
  if (!bytes) return "(none)";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}
SnapshotAttachment attachment(const std::string& name, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {name, {bytes.begin(), bytes.end()}};
}

TEST_F(SnapshotTest, AttachmentsStayUntilOneOfTheSameNameTakesTheirPlace) {
  const auto path = folder_ / "ctx.hay";
  SmallContext context(arena_);
  context.grow_to(30);
  {
    SnapshotWriter writer = SnapshotWriter::create(path, small_description());
    context.save(writer, std::vector{attachment("ann:Flat", "flat of 30"), attachment("ann:HNSW8", "")});
    writer.finish(path);
  }
  EXPECT_EQ(text_of(Snapshot::open(path).attachment("ann:Flat")), "flat of 30");
  EXPECT_EQ(text_of(Snapshot::open(path).attachment("ann:HNSW8")), "");
  EXPECT_EQ(text_of(Snapshot::open(path).attachment("ann:PQ8")), "(none)");
  {
    SnapshotWriter writer = SnapshotWriter::open_to_append(path);
    context.grow_to(70);
    context.save(writer);
    context.grow_to(80);
    context.save(writer, std::vector{attachment("ann:HNSW8", "graph of 80")});
    writer.finish(path);
  }
  const Snapshot snapshot = Snapshot::open(path);
  EXPECT_EQ(snapshot.attachments(), (std::vector<std::string>{"ann:Flat", "ann:HNSW8"}));
  EXPECT_EQ(text_of(snapshot.attachment("ann:Flat")), "flat of 30");  // knows fewer tokens, which is its maker's matter
  EXPECT_EQ(text_of(snapshot.attachment("ann:HNSW8")), "graph of 80");
  EXPECT_EQ(snapshot.content_digest(), digest_of(80));
  snapshot.verify();
}

TEST_F(SnapshotTest, AFileWithoutAttachmentsIsOneThatOlderProgramsRead) {
  EXPECT_EQ(bytes_of(saved(30, 30))[8], 1);
}

TEST_F(SnapshotTest, AnAttachmentNeedsANameThatFits) {
  SnapshotWriter writer = SnapshotWriter::create(folder_ / "ctx.hay", small_description());
  SmallContext context(arena_);
  context.grow_to(30);
  for (const std::size_t length : {std::size_t{0}, std::size_t{256}}) {
    EXPECT_TRUE(refuses([&] { context.save(writer, std::vector{attachment(std::string(length, 'n'), "x")}); },
                        {"ctx.hay", fmt::format("name of {} bytes", length)}));
  }
  context.save(writer, std::vector{attachment(std::string(255, 'n'), "x")});
}

TEST_F(SnapshotTest, AFinishedContextIsAppendedToInPlaceAndRememberedAsUnfinishedMeanwhile) {
  const auto path = saved(50, 20);
  {
    SnapshotWriter writer = SnapshotWriter::open_to_append(path);
    SmallContext context(arena_, writer.snapshot());
    context.grow_to(80);
    context.save(writer);
  }
  EXPECT_TRUE(refuses([&] { Snapshot::open(path); }, {path.string(), "unfinished", "80 tokens", "50"}));
  const Snapshot unfinished = Snapshot::open(path, Snapshot::Accept::unfinished);
  EXPECT_FALSE(unfinished.complete());
  EXPECT_EQ(unfinished.finished_tokens(), 50);
  EXPECT_EQ(unfinished.content_digest(), digest_of(80));

  SnapshotWriter writer = SnapshotWriter::open_to_append(path);
  writer.finish(path);
  EXPECT_EQ(Snapshot::open(path).content_digest(), digest_of(80));
}

TEST_F(SnapshotTest, AnEmptyContextCanBeSavedToo) {
  SnapshotWriter::create(folder_ / "empty.part", small_description()).finish(folder_ / "empty.hay");
  const Snapshot snapshot = Snapshot::open(folder_ / "empty.hay");
  snapshot.verify();
  EXPECT_EQ(snapshot.token_count(), 0);
  EXPECT_EQ(snapshot.content_digest(), digest_of(0));
}

TEST_F(SnapshotTest, TokensMayBeKnownBeforeTheyAreRead) {
  SmallContext context(arena_);
  context.grow_to(60);
  std::vector<std::int32_t> tokens = context.tokens();
  tokens.insert(tokens.end(), {7, 8, 9});
  SnapshotWriter writer = SnapshotWriter::create(folder_ / "ctx.part", small_description());
  writer.checkpoint(context.store(), tokens, context.tails());
  const Snapshot snapshot = writer.snapshot();
  snapshot.verify();
  EXPECT_EQ(snapshot.token_count(), 63);
  EXPECT_EQ(snapshot.cached_tokens(), 60);
  EXPECT_EQ(snapshot.tokens(), tokens);
  EXPECT_EQ(snapshot.tail(1).position + snapshot.tail(1).tokens, 60);
}

TEST_F(SnapshotTest, MappedBlocksCostNoBudgetAndOutliveTheSnapshot) {
  const auto path = saved(100, 30);
  Arena arena{topology_, ArenaOptions{std::uint64_t{1} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};
  std::optional<Snapshot> snapshot(Snapshot::open(path));
  SmallContext context(arena, *snapshot);
  EXPECT_EQ(arena.used_bytes(), 0u);
  const Store fork = context.store().fork();
  snapshot.reset();
  std::filesystem::remove(path);

  context.grow_to(140);
  EXPECT_GT(arena.used_bytes(), 0u);
  EXPECT_EQ(context.digest(), digest_of(140));
  EXPECT_LT(fork.tokens(0), context.store().tokens(0));
  EXPECT_EQ(fork.layer(0).blocks[0], context.store().layer(0).blocks[0]);
}

TEST_F(SnapshotTest, CheckpointsWithoutNewBlocksDoNotGrowTheFile) {
  SnapshotWriter writer = SnapshotWriter::create(folder_ / "ctx.part", small_description());
  SmallContext context(arena_);
  context.grow_to(50);
  for (int i = 0; i < 3; ++i) context.save(writer);
  const std::uint64_t bytes = writer.file_bytes();
  for (int i = 0; i < 50; ++i) context.save(writer);
  EXPECT_EQ(writer.file_bytes(), bytes);
}

TEST_F(SnapshotTest, ALayerSealedByAShortBlockIsSavedAsItIs) {
  SnapshotDescription description = small_description();
  description.shape.layers = 1;
  description.model_layers = 1;
  Store store(arena_, description.shape);
  const std::vector<f16> rows(7 * 2 * test::kDim, to_f16(0.5f));
  BlockWriter block = store.start_block();
  for (int head = 0; head < test::kHeads; ++head) {
    fill_block(store.layout(), block.data(), head, rows.data(), 2 * test::kDim, 7);
  }
  store.commit(0, std::move(block), 7);
  const std::vector<std::int32_t> tokens(7, 3);
  const std::vector<TailImage> tails = {{0, 7, 0, {}}};
  SnapshotWriter writer = SnapshotWriter::create(folder_ / "ctx.part", description);
  writer.checkpoint(store, tokens, tails);
  writer.checkpoint(store, tokens, tails);
  const Snapshot snapshot = writer.snapshot();
  snapshot.verify();
  EXPECT_EQ(snapshot.store(arena_).tokens(0), 7);
  const LayerView view = store.layer(0);
  EXPECT_EQ(snapshot.content_digest(), content_digest(tokens, {&view, 1}, tails));
}

TEST_F(SnapshotTest, AModelThatSlidesEverywhereHasTailsOnly) {
  SnapshotDescription description = small_description();
  description.shape.layers = 0;
  description.model_layers = 1;
  const std::vector<std::int32_t> tokens(9, 3);
  const std::vector<f16> rows(4 * test::kHeads * 2 * test::kDim, to_f16(0.5f));
  const std::vector<TailImage> tails = {{-1, 5, 4, rows}};
  SnapshotWriter writer = SnapshotWriter::create(folder_ / "ctx.part", description);
  writer.checkpoint(Store(arena_, description.shape), tokens, tails);
  const Snapshot snapshot = writer.snapshot();
  snapshot.verify();
  EXPECT_EQ(snapshot.tail(0).rows, rows);
  EXPECT_EQ(snapshot.store(arena_).bytes(), 0u);
  EXPECT_EQ(snapshot.content_digest(), content_digest(tokens, {}, tails));
}

TEST_F(SnapshotTest, TailsSayWhereTheirHeadsAreOfAnotherShapeThanTheStores) {
  SnapshotDescription description = small_description();
  description.shape.layers = 0;
  description.model_layers = 2;
  const std::vector<std::int32_t> tokens(9, 3);
  for (const int heads : {4 * test::kHeads, 1}) {  // rows of one head of 16 are as wide as those of two of 8
    for (const int dim : {test::kDim / 2, test::kHeads * test::kDim}) {
      const std::vector<f16> rows(static_cast<std::size_t>(4 * heads * 2 * dim), to_f16(0.5f));
      const std::vector<f16> own(4 * test::kHeads * 2 * test::kDim, to_f16(0.25f));
      const std::vector<TailImage> tails = {{-1, 5, 4, rows, {}, {}, heads}, {-1, 5, 4, own}};
      const auto path = folder_ / fmt::format("ctx{}-{}.part", heads, dim);
      SnapshotWriter writer = SnapshotWriter::create(path, description);
      writer.checkpoint(Store(arena_, description.shape), tokens, tails);
      const Snapshot snapshot = writer.snapshot();
      snapshot.verify();
      EXPECT_EQ(snapshot.tail(0).rows, rows);
      EXPECT_EQ(snapshot.tail(0).kv_heads, heads);
      EXPECT_EQ(snapshot.tail(1).rows, own);
      EXPECT_EQ(snapshot.tail(1).kv_heads, 0);
    }
  }
}

}  // namespace
}  // namespace hayloft::offload
