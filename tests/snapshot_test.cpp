#include "offload/snapshot.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "offload/snapshot_writer.h"
#include "refusal.h"
#include "snapshot_fixture.h"
#include "temporary_folder.h"

namespace hayloft::offload {
namespace {

using test::bytes_of;
using test::refuses;
using test::small_description;
using test::SmallContext;

class SnapshotTest : public testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const Topology topology_;
  Arena arena_{topology_, ArenaOptions{std::uint64_t{64} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};

  std::string digest_of(std::int64_t tokens) {
    SmallContext context(arena_);
    context.grow_to(tokens);
    return context.digest();
  }

  // A finished file of `tokens` tokens, checkpointed every `step`.
  std::filesystem::path saved(std::int64_t tokens, std::int64_t step, const std::string& name = "ctx.hay") {
    const auto part = folder_ / (name + ".part");
    SnapshotWriter writer = SnapshotWriter::create(part, small_description());
    SmallContext context(arena_);
    for (std::int64_t at = 0; at < tokens;) {
      context.grow_to(at = std::min(tokens, at + step));
      context.save(writer);
    }
    writer.finish(folder_ / name);
    return folder_ / name;
  }
};

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

TEST_F(SnapshotTest, TheDigestIsThatOfTheContentAndNotOfItsHistory) {
  const std::string in_memory = digest_of(100);
  EXPECT_EQ(Snapshot::open(saved(100, 100, "once.hay")).content_digest(), in_memory);
  EXPECT_EQ(Snapshot::open(saved(100, 7, "often.hay")).content_digest(), in_memory);
  EXPECT_NE(bytes_of(folder_ / "once.hay"), bytes_of(folder_ / "often.hay"));
  EXPECT_NE(Snapshot::open(saved(101, 101, "longer.hay")).content_digest(), in_memory);
}

}  // namespace
}  // namespace hayloft::offload
