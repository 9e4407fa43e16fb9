#include "offload/store/store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using test::message_of;

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

StoreShape shape_of(int layers, int kv_heads, int d, int B) {
  StoreShape shape;
  shape.layers = layers;
  shape.kv_heads = kv_heads;
  shape.head_dim = d;
  shape.block_tokens = B;
  return shape;
}

// f16 [tokens][2 d] of normally distributed values.
std::vector<f16> random_rows(int tokens, int d, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<f16> rows(static_cast<std::size_t>(tokens) * 2 * d);
  for (f16& x : rows) x = to_f16(normal(random));
  return rows;
}

class StoreTest : public ::testing::Test {
 protected:
  Topology topology_;
  Arena arena_{topology_, ArenaOptions{64 * MiB, "--host-memory", 1 * MiB, nullptr}};

  // Appends `tokens` tokens, the same rows for every head.
  void append(Store& store, int layer, const std::vector<f16>& rows, int tokens) {
    const BlockLayout& layout = store.layout();
    BlockWriter block = store.start_block();
    for (int head = 0; head < layout.kv_heads; ++head) {
      fill_block(layout, block.data(), head, rows.data(), 2 * layout.head_dim, tokens);
    }
    store.commit(layer, std::move(block), tokens);
  }
};

TEST_F(StoreTest, AnEmptyStoreHoldsNothing) {
  const Store store(arena_, shape_of(2, 3, 16, 16));
  EXPECT_EQ(store.tokens(1), 0);
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_EQ(arena_.used_bytes(), 0u);
  const LayerView view = store.layer(1);
  EXPECT_TRUE(view.blocks.empty());
  ASSERT_EQ(view.value_sum.size(), 3u * 16u);
  for (const float sum : view.value_sum) EXPECT_EQ(sum, 0.0f);
}

TEST_F(StoreTest, AppendedRowsAreReadBackByPosition) {
  constexpr int d = 24, B = 32;
  Store store(arena_, shape_of(2, 2, d, B));
  std::vector<std::vector<f16>> blocks;
  for (unsigned i = 0; i < 3; ++i) {
    blocks.push_back(random_rows(B, d, i));
    append(store, 1, blocks.back(), B);
  }
  EXPECT_EQ(store.tokens(0), 0);
  EXPECT_EQ(store.tokens(1), 3 * B);
  const LayerView view = store.layer(1);
  for (int position = 0; position < 3 * B; ++position) {
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(std::memcmp(view.row(head, position, nullptr), &blocks[position / B][position % B * 2 * d],
                            2 * d * sizeof(f16)),
                0)
          << "head " << head << ", position " << position;
    }
  }
}

TEST_F(StoreTest, AForkCostsNoBlockMemory) {
  Store store(arena_, shape_of(1, 1, 16, 16));
  append(store, 0, random_rows(16, 16, 1), 16);
  const std::uint64_t used = arena_.used_bytes();
  const Store fork = store.fork();
  EXPECT_EQ(arena_.used_bytes(), used);
  EXPECT_EQ(fork.layer(0).blocks[0], store.layer(0).blocks[0]);
  EXPECT_EQ(fork.bytes(), store.bytes());
}

TEST_F(StoreTest, AppendingToAForkIsNotSeenByTheOther) {
  constexpr int d = 16, B = 16;
  Store store(arena_, shape_of(1, 1, d, B));
  append(store, 0, random_rows(B, d, 1), B);
  Store fork = store.fork();
  const std::vector<f16> to_fork = random_rows(B, d, 2);
  const std::vector<f16> to_store = random_rows(B, d, 3);
  append(fork, 0, to_fork, B);
  EXPECT_EQ(store.tokens(0), B);
  EXPECT_EQ(store.layer(0).blocks.size(), 1u);

  append(store, 0, to_store, B);
  EXPECT_EQ(std::memcmp(fork.layer(0).row(0, B, nullptr), to_fork.data(), to_fork.size() * sizeof(f16)), 0);
  EXPECT_EQ(std::memcmp(store.layer(0).row(0, B, nullptr), to_store.data(), to_store.size() * sizeof(f16)), 0);
  EXPECT_NE(fork.layer(0).value_sum[0], store.layer(0).value_sum[0]);
}

TEST_F(StoreTest, SharedBlocksLiveUntilTheLastStoreThatHoldsThem) {
  constexpr int d = 16, B = 16;
  std::optional<Store> store(std::in_place, arena_, shape_of(1, 1, d, B));
  const std::vector<f16> rows = random_rows(B, d, 1);
  append(*store, 0, rows, B);
  const std::uint64_t one_block = arena_.used_bytes();
  std::optional<Store> fork(store->fork());
  append(*store, 0, rows, B);
  EXPECT_EQ(arena_.used_bytes(), 2 * one_block);

  store.reset();
  EXPECT_EQ(arena_.used_bytes(), one_block);
  EXPECT_EQ(std::memcmp(fork->layer(0).row(0, 0, nullptr), rows.data(), rows.size() * sizeof(f16)), 0);
  fork.reset();
  EXPECT_EQ(arena_.used_bytes(), 0u);
}

TEST(StoreLifetime, BlocksOutliveTheArena) {
  constexpr int d = 8, B = 16;
  const Topology topology;
  std::optional<Arena> arena(std::in_place, topology, ArenaOptions{1 * MiB, "--host-memory", 1 * MiB, nullptr});
  Store store(*arena, shape_of(1, 1, d, B));
  const std::vector<f16> rows = random_rows(B, d, 1);
  BlockWriter block = store.start_block();
  fill_block(store.layout(), block.data(), 0, rows.data(), 2 * d, B);
  store.commit(0, std::move(block), B);
  arena.reset();
  EXPECT_EQ(std::memcmp(store.layer(0).row(0, 0, nullptr), rows.data(), rows.size() * sizeof(f16)), 0);
}

class AdoptedBlocks : public StoreTest {
 protected:
  static constexpr int d = 16, B = 16;

  // A store of three blocks of another's and one of its own.
  Store adopting(Arena& arena) {
    const Store& other = *lender_;
    AdoptedLayer layer;
    layer.blocks.assign(other.layer(0).blocks.begin(), other.layer(0).blocks.end());
    layer.tokens = other.tokens(0);
    layer.value_sum.assign(other.exact_value_sum(0).begin(), other.exact_value_sum(0).end());
    Store store(arena, shape_of(1, 2, d, B), lender_, {layer});
    append(store, 0, random_rows(B, d, 4), B);
    return store;
  }
  void SetUp() override {
    for (unsigned seed = 1; seed <= 3; ++seed) append(*lender_, 0, random_rows(B, d, seed), B);
  }
  static std::vector<std::byte> contents(const Store& store) {
    std::vector<std::byte> all;
    for (const std::byte* block : store.layer(0).blocks) {
      all.insert(all.end(), block, block + store.layout().block_bytes);
    }
    return all;
  }

  Arena elsewhere_{topology_, ArenaOptions{8 * MiB, "--host-memory", 1 * MiB, nullptr}};
  Threads threads_{2};
  std::shared_ptr<Store> lender_ = std::make_shared<Store>(elsewhere_, shape_of(1, 2, d, B));
};

TEST_F(AdoptedBlocks, TakenInAreTheSameBlocksInMemoryOfTheArena) {
  Store store = adopting(arena_);
  const Store fork = store.fork();
  const std::vector<std::byte> before = contents(store);
  const std::byte* const own = store.layer(0).blocks[3];
  store.copy_mapped_blocks(threads_);
  EXPECT_EQ(contents(store), before);
  EXPECT_EQ(contents(fork), before);
  EXPECT_EQ(store.layer(0).blocks[3], own);
  for (int i = 0; i < 3; ++i) EXPECT_NE(store.layer(0).blocks[i], fork.layer(0).blocks[i]);
  EXPECT_EQ(arena_.used_bytes(), 4 * std::uint64_t{Arena::alignment});

  const std::uint64_t used = arena_.used_bytes();
  store.copy_mapped_blocks(threads_);
  EXPECT_EQ(arena_.used_bytes(), used);
}

TEST_F(AdoptedBlocks, TakenInOutliveTheirLender) {
  Store store = adopting(arena_);
  const std::vector<std::byte> before = contents(store);
  store.copy_mapped_blocks(threads_);
  lender_.reset();
  EXPECT_EQ(elsewhere_.used_bytes(), 0u);
  EXPECT_EQ(contents(store), before);
}

TEST_F(AdoptedBlocks, StayWhereTheyAreWhenTheArenaHasNoRoom) {
  Arena small(topology_, ArenaOptions{3 * Arena::alignment, "--host-memory", 1 * MiB, nullptr});
  Store store = adopting(small);
  const std::vector<std::byte> before = contents(store);
  const std::vector<const std::byte*> blocks(store.layer(0).blocks.begin(), store.layer(0).blocks.end());
  EXPECT_THROW(store.copy_mapped_blocks(threads_), Error);
  EXPECT_TRUE(std::equal(blocks.begin(), blocks.end(), store.layer(0).blocks.begin()));
  EXPECT_EQ(contents(store), before);
}

TEST_F(StoreTest, ABlockThatIsNeverCommittedGoesBack) {
  Store store(arena_, shape_of(1, 1, 16, 16));
  {
    const BlockWriter block = store.start_block();
    EXPECT_GT(arena_.used_bytes(), 0u);
  }
  EXPECT_EQ(arena_.used_bytes(), 0u);
  EXPECT_EQ(store.tokens(0), 0);
}

TEST_F(StoreTest, AShortBlockSealsItsLayerAndNoOther) {
  constexpr int d = 16, B = 16;
  Store store(arena_, shape_of(2, 1, d, B));
  const std::vector<f16> rows = random_rows(B, d, 1);
  append(store, 0, rows, 5);
  EXPECT_EQ(store.tokens(0), 5);
  EXPECT_THROW(append(store, 0, rows, B), std::logic_error);
  EXPECT_EQ(store.tokens(0), 5);
  EXPECT_EQ(store.layer(0).blocks.size(), 1u);
  append(store, 1, rows, B);
  append(store, 1, rows, B);
  EXPECT_EQ(store.tokens(1), 2 * B);
}

TEST_F(StoreTest, MistakesOfTheProgrammerAreCaught) {
  Store store(arena_, shape_of(1, 1, 16, 16));
  EXPECT_THROW(store.commit(0, BlockWriter(), 16), std::logic_error);
  EXPECT_THROW(store.commit(0, store.start_block(), 0), std::logic_error);
  EXPECT_THROW(store.commit(0, store.start_block(), 17), std::logic_error);
  EXPECT_THROW(store.commit(1, store.start_block(), 16), std::logic_error);
  EXPECT_THROW(store.layer(-1), std::logic_error);
  EXPECT_THROW(store.tokens(1), std::logic_error);
  const AdoptedLayer negative{{}, -3, std::vector<double>(16), {}};
  EXPECT_THROW(Store(arena_, store.shape(), nullptr, {negative}), std::logic_error);
  EXPECT_EQ(store.tokens(0), 0);
  EXPECT_EQ(arena_.used_bytes(), 0u);
}

TEST_F(StoreTest, WhatWasMovedFromHasNoLayers) {
  Store store(arena_, shape_of(1, 1, 16, 16));
  const Store taken = std::move(store);
  EXPECT_EQ(taken.tokens(0), 0);
  EXPECT_THROW(store.layer(0), std::logic_error);  // NOLINT: it was moved from
  EXPECT_THROW(store.tokens(0), std::logic_error);
  EXPECT_THROW(store.clear(0), std::logic_error);
  EXPECT_THROW(store.start_block(), std::logic_error);
  EXPECT_THROW(store.fork().tokens(0), std::logic_error);
}

TEST_F(StoreTest, ValueSumsEqualSumsInDouble) {
  constexpr int d = 40, B = 64, blocks = 9, last = 7;
  Store store(arena_, shape_of(1, 2, d, B));
  std::vector<double> sum(d);
  std::vector<double> magnitude(d);
  for (int i = 0; i <= blocks; ++i) {
    const int tokens = i < blocks ? B : last;
    const std::vector<f16> rows = random_rows(tokens, d, static_cast<unsigned>(i));
    append(store, 0, rows, tokens);
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < d; ++c) {
        const double v = to_float(rows[t * 2 * d + d + c]);
        sum[c] += v;
        magnitude[c] += std::abs(v);
      }
    }
  }
  const std::span<const float> got = store.layer(0).value_sum;
  for (int head = 0; head < 2; ++head) {
    for (int c = 0; c < d; ++c) {
      // One rounding to f32 per block and one of the total, each at most half an ulp of something no larger than the
      // sum of magnitudes.
      EXPECT_NEAR(got[head * d + c], sum[c], 2 * 0x1p-24 * magnitude[c]);
    }
  }
}

TEST_F(StoreTest, ManySmallValuesAreNotLostBesideALargeSum) {
  constexpr int d = 8, B = 16;
  Store store(arena_, shape_of(1, 1, d, B));
  std::vector<f16> rows(B * 2 * d, to_f16(0.0f));
  rows[d] = to_f16(32768.0f);
  append(store, 0, rows, B);
  rows[d] = to_f16(0x1p-10f);  // below half an ulp of 32768 in f32, so one at a time they would all vanish
  for (int i = 0; i < 256; ++i) append(store, 0, rows, B);
  EXPECT_EQ(store.layer(0).value_sum[0], 32768.25f);
}

TEST_F(StoreTest, AnExhaustedBudgetLeavesTheStoreAsItWasAndNamesTheOption) {
  constexpr int d = 64, B = 128;
  Arena small(topology_, ArenaOptions{200 * 1024, "--host-memory", 1 * MiB, nullptr});
  Store store(small, shape_of(1, 1, d, B));
  const std::vector<f16> rows = random_rows(B, d, 1);
  for (int i = 0; i < 3; ++i) append(store, 0, rows, B);
  const std::vector<float> sum(store.layer(0).value_sum.begin(), store.layer(0).value_sum.end());

  const std::string message = message_of([&] { store.start_block(); });
  EXPECT_NE(message.find("200.0 KiB is exhausted"), std::string::npos) << message;
  EXPECT_NE(message.find("asked for 52.0 KiB"), std::string::npos) << message;
  EXPECT_NE(message.find("--host-memory"), std::string::npos) << message;
  EXPECT_EQ(store.tokens(0), 3 * B);
  EXPECT_EQ(store.layer(0).blocks.size(), 3u);
  EXPECT_TRUE(std::equal(sum.begin(), sum.end(), store.layer(0).value_sum.begin()));
}

}  // namespace
}  // namespace hayloft::offload
