#include "offload/host/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/offload/host/arena_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using test::message_of;

TEST_F(ArenaTest, ExtentsAreWholePagesZeroedAndApart) {
  Arena arena(topology_, options(8 * MiB, 1 * MiB));
  std::vector<Extent> extents;
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{4097}, 900 * KiB, 3 * MiB}) {
    extents.push_back(arena.allocate(bytes));
    const Extent& extent = extents.back();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(extent.data()) % Arena::alignment, 0u);
    EXPECT_EQ(extent.bytes(), (bytes + 4095) / 4096 * 4096);
    EXPECT_TRUE(all_zero(extent));
    scribble(extent);  // a later extent that overlapped would not be zero
  }
}

TEST_F(ArenaTest, NothingAskedForIsAnEmptyExtent) {
  Arena arena(topology_, options(MiB, MiB));
  EXPECT_FALSE(arena.allocate(0));
  EXPECT_EQ(arena.used_bytes(), 0u);
}

TEST_F(ArenaTest, UsedFallsWhenExtentsGoAndPeakStays) {
  Arena arena(topology_, options(8 * MiB, MiB));
  EXPECT_EQ(arena.budget_bytes(), 8 * MiB);
  Extent a = arena.allocate(1 * MiB);
  {
    const Extent b = arena.allocate(2 * MiB);
    EXPECT_EQ(arena.used_bytes(), 3 * MiB);
  }
  EXPECT_EQ(arena.used_bytes(), 1 * MiB);
  Extent moved = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): empty is what it is promised to be
  EXPECT_EQ(arena.used_bytes(), 1 * MiB);
  moved = Extent();
  EXPECT_EQ(arena.used_bytes(), 0u);
  const Extent c = arena.allocate(1 * MiB);
  EXPECT_EQ(arena.peak_bytes(), 3 * MiB);
}

TEST_F(ArenaTest, WithoutABudgetItTakesMostOfWhatIsAvailable) {
  const Arena arena(topology_);
  // Other processes come and go between the two readings.
  EXPECT_GT(arena.budget_bytes(), topology_.available_bytes() / 2);
  EXPECT_LT(arena.budget_bytes(), topology_.memory_bytes());
}

TEST_F(ArenaTest, AnExhaustedBudgetSaysWhatWasAskedWhatIsLeftAndWhatToChange) {
  ArenaOptions limited = options(10 * MiB, MiB);
  limited.budget_option = "--kv-memory";
  Arena arena(topology_, limited);
  const Extent most = arena.allocate(7 * MiB);
  EXPECT_EQ(message_of([&] { arena.allocate(4 * MiB); }),
            "host memory budget of 10.0 MiB is exhausted: asked for 4.0 MiB, 3.0 MiB left; raise --kv-memory or lower "
            "the context");
  EXPECT_EQ(arena.used_bytes(), 7 * MiB);
  EXPECT_EQ(arena.peak_bytes(), 7 * MiB);
  EXPECT_TRUE(arena.allocate(3 * MiB)) << "a smaller request still succeeds";
}

TEST_F(ArenaTest, ARequestNearTheLargestNumberIsRefusedLikeAnyOther) {
  Arena arena(topology_, options(MiB, MiB));
  for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - 4096, UINT64_MAX / 2}) {
    EXPECT_NE(message_of([&] { arena.allocate(bytes); }).find("is exhausted"), std::string::npos) << bytes;
  }
}

TEST_F(ArenaTest, ManyAskedForAtOnceLieBehindOneAnotherInOneLargeChunk) {
  ArenaOptions listened = options(64 * MiB, MiB);
  const auto recorder = std::make_shared<Recorder>();
  listened.listener = recorder;
  Arena arena(topology_, listened);
  const std::vector<Extent> extents = arena.allocate(300 * KiB, 40);  // 11.7 MiB
  ASSERT_EQ(extents.size(), 40u);
  for (std::size_t i = 1; i < extents.size(); ++i) {
    EXPECT_EQ(extents[i].data() - extents[i - 1].data(), static_cast<std::ptrdiff_t>(300 * KiB)) << i;
  }
  for (const Extent& extent : extents) EXPECT_TRUE(all_zero(extent));
  if (topology_.huge_pages().empty()) {
    ASSERT_EQ(recorder->chunks.size(), 1u);
    EXPECT_EQ(recorder->chunks.begin()->second, 40 * 300 * KiB) << "no more than was asked for";
    const std::vector<Extent> more = arena.allocate(MiB, 40);
    EXPECT_EQ(recorder->chunks.size(), 4u) << "16 chunks' worth in a piece at most: 16, 16 and 8 MiB";
  }
}

TEST_F(ArenaTest, ManyAskedForAtOnceAreAllGivenOrNone) {
  Arena arena(topology_, options(10 * MiB, MiB));
  const Extent some = arena.allocate(3 * MiB);
  EXPECT_EQ(message_of([&] { arena.allocate(MiB, 8); }),
            "host memory budget of 10.0 MiB is exhausted: asked for 8.0 MiB, 7.0 MiB left; raise --host-memory or "
            "lower the context");
  EXPECT_NE(message_of([&] { arena.allocate(MiB, SIZE_MAX); }).find("is exhausted"), std::string::npos);
  EXPECT_EQ(arena.used_bytes(), 3 * MiB);
  EXPECT_EQ(arena.peak_bytes(), 3 * MiB);
  EXPECT_EQ(arena.allocate(MiB, 7).size(), 7u);
  EXPECT_TRUE(arena.allocate(MiB, 0).empty());
}

TEST_F(ArenaTest, TheWholeBudgetCanBeUsedByExtentsOfOneSize) {
  for (const std::uint64_t chunk : {100 * KiB, 1 * MiB, 64 * MiB}) {
    Arena arena(topology_, options(52 * KiB * 100, chunk));
    std::vector<Extent> extents;
    for (int i = 0; i < 100; ++i) extents.push_back(arena.allocate(52 * KiB));
    EXPECT_EQ(arena.used_bytes(), arena.budget_bytes()) << "chunks of " << chunk;
  }
}

TEST_F(ArenaTest, ManyThreadsMayAllocateAndFreeAtOnce) {
  Arena arena(topology_, options(4 * MiB, 256 * KiB));
  std::vector<std::thread> workers;
  std::vector<int> wrong(4);
  for (unsigned worker = 0; worker < 4; ++worker) {
    workers.emplace_back([&, worker] {
      std::mt19937 random(worker);
      const auto mark = static_cast<std::byte>(worker + 1);
      std::vector<Extent> held;
      for (int i = 0; i < 500; ++i) {
        // Each worker holds at most 16 extents of 4 to 16 KiB, 1 MiB in all with the others: never out of budget.
        if (held.size() == 16 || (!held.empty() && random() % 2)) {
          const std::size_t which = random() % held.size();
          const Extent& extent = held[which];
          wrong[worker] +=
              std::any_of(extent.data(), extent.data() + extent.bytes(), [&](auto b) { return b != mark; });
          std::swap(held[which], held.back());
          held.pop_back();
        } else {
          held.push_back(arena.allocate((random() % 4 + 1) * 4096));
          wrong[worker] += !all_zero(held.back());
          std::memset(held.back().data(), static_cast<int>(mark), held.back().bytes());
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_LE(arena.peak_bytes(), 1 * MiB);
}

}  // namespace
}  // namespace hayloft::offload
