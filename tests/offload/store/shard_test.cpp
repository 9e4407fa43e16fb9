#include "offload/store/shard.h"

#include <gtest/gtest.h>

namespace hayloft::offload {
namespace {

constexpr int block_tokens = 16;

TEST(Shard, RanksDealTheBlocksOutInTurn) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (std::int64_t blocks = 0; blocks < 30; ++blocks) {
      std::int64_t sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Shard shard{rank, ranks};
        const std::int64_t own = shard.own_blocks(blocks);
        EXPECT_GE(own, blocks / ranks);
        EXPECT_LE(own, (blocks + ranks - 1) / ranks);
        EXPECT_EQ(shard.own_blocks(blocks + 1) - own, shard.owns(blocks) ? 1 : 0);
        sum += own;
      }
      EXPECT_EQ(sum, blocks);
    }
  }
}

TEST(Shard, OwnPositionsAreWholeOnesInTheirOrder) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Shard shard{rank, ranks};
      std::int64_t next = 0;
      for (std::int64_t position = 0; position < 12 * block_tokens; ++position) {
        EXPECT_EQ(shard.own(position, block_tokens), next) << position;
        if (!shard.owns(position / block_tokens)) continue;
        EXPECT_EQ(shard.whole(next, block_tokens), position);
        ++next;
      }
    }
  }
}

TEST(Shard, AloneEverythingIsOwn) {
  const Shard alone;
  EXPECT_TRUE(alone.alone());
  EXPECT_TRUE(alone.owns(5));
  EXPECT_EQ(alone.own_blocks(9), 9);
  EXPECT_EQ(alone.own(100, block_tokens), 100);
  EXPECT_EQ(alone.whole(100, block_tokens), 100);
}

}  // namespace
}  // namespace hayloft::offload
