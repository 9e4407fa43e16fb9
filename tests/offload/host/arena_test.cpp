#include "offload/host/arena.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using test::message_of;

constexpr std::uint64_t KiB = std::uint64_t{1} << 10;
constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

class ArenaTest : public testing::Test {
 protected:
  Topology topology_;

  ArenaOptions options(std::uint64_t budget, std::uint64_t chunk) const {
    ArenaOptions options;
    options.budget_bytes = budget;
    options.chunk_bytes = chunk;
    return options;
  }
};

// Keeps the chunks it was told of; refuses them while `refusing`.
class Recorder : public ChunkListener {
 public:
  void committed(std::byte* data, std::uint64_t bytes) override {
    if (refusing) fail("cannot pin {} bytes", bytes);
    EXPECT_TRUE(chunks.emplace(data, bytes).second);
  }
  void releasing(std::byte* data, std::uint64_t bytes) noexcept override {
    const auto chunk = chunks.find(data);
    ASSERT_NE(chunk, chunks.end());
    EXPECT_EQ(chunk->second, bytes);
    static_cast<volatile std::byte*>(data)[0];  // still there
    chunks.erase(chunk);
  }

  bool holds(const Extent& extent) const {
    auto chunk = chunks.upper_bound(extent.data());
    if (chunk == chunks.begin()) return false;
    --chunk;
    return extent.data() + extent.bytes() <= chunk->first + chunk->second;
  }

  std::map<std::byte*, std::uint64_t> chunks;
  bool refusing = false;
};

bool all_zero(const Extent& extent) {
  return std::all_of(extent.data(), extent.data() + extent.bytes(), [](std::byte b) { return b == std::byte{0}; });
}

void scribble(const Extent& extent) {
  std::memset(extent.data(), 0x5a, extent.bytes());
}

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
