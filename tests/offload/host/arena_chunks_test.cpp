#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/offload/host/arena_fixture.h"
#include "tests/support/refusal.h"

// The chunks behind an arena: what becomes of freed memory, of holes, and who is told.
namespace hayloft::offload {
namespace {

using test::message_of;

TEST_F(ArenaTest, FreedMemoryIsZeroWhenItIsUsedAgain) {
  for (const bool pinned : {false, true}) {
    ArenaOptions with = options(4 * MiB, 4 * MiB);
    if (pinned) with.listener = std::make_shared<Recorder>();
    Arena arena(topology_, with);
    for (int round = 0; round < 3; ++round) {
      std::vector<Extent> extents;
      for (int i = 0; i < 64; ++i) {
        extents.push_back(arena.allocate(64 * KiB));
        ASSERT_TRUE(all_zero(extents.back())) << "round " << round << (pinned ? ", pinned" : "");
        scribble(extents.back());
      }
    }
  }
}

TEST_F(ArenaTest, FreedMemoryGoesBackToTheSystemUnlessAListenerHasPinnedIt) {
  for (const bool pinned : {false, true}) {
    ArenaOptions with = options(1 * MiB, 1 * MiB);
    if (pinned) with.listener = std::make_shared<Recorder>();
    Arena arena(topology_, with);
    Extent extent = arena.allocate(64 * KiB);
    const std::byte* const data = extent.data();
    scribble(extent);
    extent = Extent();
    // The chunk, too small for an explicit huge page, is still mapped. Its old contents show that the pages are still
    // those a device would read; zeros, that they were given up.
    EXPECT_EQ(data[0], pinned ? std::byte{0x5a} : std::byte{0});
  }
}

// The page size the kernel uses for the mapping that holds `data`, from /proc/self/smaps.
std::uint64_t page_bytes_at(const std::byte* data) {
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(data);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0, end = 0;
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    } else if (inside && std::sscanf(line.c_str(), "KernelPageSize: %lu kB", &kib) == 1) {
      return kib * KiB;
    }
  }
  return 0;
}

TEST_F(ArenaTest, FreeHugePagesAreTakenFromTheSystemsPool) {
  const std::vector<PagePool>& pools = topology_.huge_pages();
  const auto pool =
      std::find_if(pools.begin(), pools.end(), [](const PagePool& p) { return p.page_bytes <= 64 * MiB; });
  if (pool == pools.end()) GTEST_SKIP() << "this machine keeps no free huge pages (vm.nr_hugepages)";
  Arena arena(topology_, options(pool->page_bytes, pool->page_bytes));
  for (int round = 0; round < 2; ++round) {
    const Extent extent = arena.allocate(pool->page_bytes);
    EXPECT_EQ(page_bytes_at(extent.data()), pool->page_bytes);
    EXPECT_TRUE(all_zero(extent));
    scribble(extent);
  }
}

TEST_F(ArenaTest, NeighboursThatAreFreedJoinIntoOnePiece) {
  Arena arena(topology_, options(64 * KiB, 64 * KiB));
  const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {0, 2, 1, 3}};
  for (const std::vector<int>& order : orders) {
    std::vector<Extent> extents;
    for (int i = 0; i < 4; ++i) extents.push_back(arena.allocate(16 * KiB));
    const Extent* const keep = extents.data();  // the chunk must not merely be exchanged for a new one
    ASSERT_TRUE(*keep);
    for (const int i : order) extents[static_cast<std::size_t>(i)] = Extent();
    EXPECT_TRUE(arena.allocate(64 * KiB));
  }
}

TEST_F(ArenaTest, AHoleIsFilledBeforeMoreIsCommitted) {
  const auto recorder = std::make_shared<Recorder>();
  ArenaOptions with = options(8 * MiB, 64 * KiB);
  with.listener = recorder;
  Arena arena(topology_, with);
  Extent a = arena.allocate(16 * KiB);
  Extent b = arena.allocate(16 * KiB);
  const Extent c = arena.allocate(16 * KiB);
  std::byte* const hole = a.data();
  a = Extent();
  b = Extent();
  const Extent joined = arena.allocate(32 * KiB);
  EXPECT_EQ(joined.data(), hole);
  EXPECT_EQ(recorder->chunks.size(), 1u);
}

TEST_F(ArenaTest, MemoryLeftOnlyInPiecesIsAnErrorThatSaysSo) {
  Arena arena(topology_, options(64 * KiB, 64 * KiB));
  std::vector<Extent> extents;
  for (int i = 0; i < 16; ++i) extents.push_back(arena.allocate(4 * KiB));
  for (std::size_t i = 0; i < 16; i += 2) extents[i] = Extent();
  const std::string message = message_of([&] { arena.allocate(8 * KiB); });
  EXPECT_NE(message.find("asked for 8.0 KiB, 32.0 KiB left but no more than 4.0 KiB in one piece"), std::string::npos)
      << message;
  EXPECT_NE(message.find("--host-memory"), std::string::npos) << message;
  EXPECT_EQ(arena.used_bytes(), 32 * KiB);
}

TEST_F(ArenaTest, IdleChunksMakeRoomForExtentsOfAnotherSize) {
  const auto recorder = std::make_shared<Recorder>();
  ArenaOptions with = options(64 * KiB, 16 * KiB);
  with.listener = recorder;
  Arena arena(topology_, with);
  {
    std::vector<Extent> small;
    for (int i = 0; i < 16; ++i) small.push_back(arena.allocate(4 * KiB));
    EXPECT_EQ(recorder->chunks.size(), 4u);
  }
  const Extent large = arena.allocate(60 * KiB);
  EXPECT_TRUE(all_zero(large));
  EXPECT_EQ(recorder->chunks.size(), 1u);
}

TEST_F(ArenaTest, AnExtentLiesWithinOneChunk) {
  const auto recorder = std::make_shared<Recorder>();
  ArenaOptions with = options(16 * MiB, 256 * KiB);
  with.listener = recorder;
  Arena arena(topology_, with);
  std::vector<Extent> extents;
  for (const std::uint64_t size : {100 * KiB, 256 * KiB, 4 * KiB, 100 * KiB, 1000 * KiB, 60 * KiB, 100 * KiB}) {
    extents.push_back(arena.allocate(size));
    EXPECT_TRUE(recorder->holds(extents.back())) << size;
  }
  std::uint64_t committed = 0;
  for (const auto& [data, bytes] : recorder->chunks) committed += bytes;
  EXPECT_LE(committed, arena.budget_bytes());
}

TEST_F(ArenaTest, AListenerHearsOfEveryChunkUntilTheLastExtentIsGone) {
  const auto recorder = std::make_shared<Recorder>();
  ArenaOptions with = options(1 * MiB, 256 * KiB);
  with.listener = recorder;
  std::optional<Arena> arena(std::in_place, topology_, with);
  std::optional<Extent> a(arena->allocate(256 * KiB));
  std::optional<Extent> b(arena->allocate(256 * KiB));
  EXPECT_EQ(recorder->chunks.size(), 2u);
  arena.reset();
  a.reset();
  EXPECT_EQ(recorder->chunks.size(), 2u);
  scribble(*b);
  b.reset();
  EXPECT_TRUE(recorder->chunks.empty());
}

TEST_F(ArenaTest, AListenerThatRefusesFailsTheAllocationAndLosesNothing) {
  const auto recorder = std::make_shared<Recorder>();
  ArenaOptions with = options(64 * KiB, 64 * KiB);
  with.listener = recorder;
  Arena arena(topology_, with);
  recorder->refusing = true;
  EXPECT_EQ(message_of([&] { arena.allocate(64 * KiB); }), "cannot pin 65536 bytes");
  EXPECT_EQ(arena.used_bytes(), 0u);
  recorder->refusing = false;
  EXPECT_TRUE(recorder->holds(arena.allocate(64 * KiB)));
}

TEST_F(ArenaTest, MemoryTheSystemRefusesIsAnErrorAndSmallerRequestsSucceed) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  struct Restore {
    rlimit limit;
    ~Restore() { setrlimit(RLIMIT_AS, &limit); }
  } const restore{before};
  Arena arena(topology_, options(std::uint64_t{64} << 30, std::uint64_t{1} << 30));
  rlimit tight = before;
  tight.rlim_cur = pages * 4096 + 64 * MiB;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const std::string message = message_of([&] { arena.allocate(256 * MiB); });
  const Extent small = arena.allocate(1 * MiB);  // although a whole chunk is still refused
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(message.find("the system refused 256.0 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("--host-memory"), std::string::npos) << message;
  EXPECT_TRUE(all_zero(small));
  EXPECT_EQ(arena.used_bytes(), 1 * MiB);
}

}  // namespace
}  // namespace hayloft::offload
