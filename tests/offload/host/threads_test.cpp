#include "offload/host/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/host/topology.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;

Pieces pieces_of(const Threads& threads, std::int64_t n, std::int64_t grain) {
  Pieces pieces;
  std::mutex mutex;
  threads.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    pieces.emplace_back(begin, end);
  });
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

TEST(Threads, TakesTheUsableProcessorsUnlessTold) {
  EXPECT_EQ(Threads().count(), usable_processors());
  EXPECT_EQ(Threads(1).count(), 1);
  EXPECT_EQ(Threads(7).count(), 7);
}

// In a process of its own, which gives up being root: root may start as many as it likes.
TEST(Threads, ANegativeNumberIsRefused) {
  EXPECT_TRUE(test::refuses([] { Threads(-1); }, {"--threads -1"}));
}

TEST(Threads, SaysThatTheSystemStartsNoMore) {
  const auto refused = [] {
    const rlimit one{1, 1};
    if ((::getuid() == 0 && ::setuid(65534) != 0) || ::setrlimit(RLIMIT_NPROC, &one) != 0) ::_exit(3);
    try {
      const Threads threads(8);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(1),
              "--threads 8: the system starts no more than [0-9]+ threads here.*ulimit -u");
}

TEST(Threads, EveryItemIsVisitedOnce) {
  const Threads threads(4);
  std::vector<std::atomic<int>> visits(100'003);
  threads.parallel_for(static_cast<std::int64_t>(visits.size()), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  for (const auto& count : visits) ASSERT_EQ(count, 1);
}

TEST(Threads, PiecesAreWholeGrainsWhateverTheNumberOfThreads) {
  const Pieces expected = {{0, 10}, {10, 20}, {20, 30}, {30, 33}};
  for (const int count : {1, 2, 5}) EXPECT_EQ(pieces_of(Threads(count), 33, 10), expected) << count << " threads";
}

TEST(Threads, NothingToDoIsNothingDone) {
  const Threads threads(2);
  EXPECT_TRUE(pieces_of(threads, 0, 16).empty());
  EXPECT_TRUE(pieces_of(threads, -5, 16).empty());
}

TEST(Threads, AGrainOutOfRangeIsBroughtIntoIt) {
  const Threads threads(2);
  EXPECT_EQ(pieces_of(threads, 3, 0), (Pieces{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(pieces_of(threads, 3, 1000), (Pieces{{0, 3}}));
}

TEST(Threads, AsManyThreadsWorkAtOnceAsWereAskedFor) {
  constexpr int count = 4;  // also on a machine with fewer processors
  const Threads threads(count);
  std::mutex mutex;
  std::condition_variable all_here;
  int here = 0;
  threads.parallel_for(count, 1, [&](std::int64_t, std::int64_t) {
    std::unique_lock lock(mutex);
    if (++here == count) all_here.notify_all();
    all_here.wait(lock, [&] { return here == count; });  // a piece per thread, or nobody gets past this
  });
  EXPECT_EQ(here, count);
}

TEST(Threads, NestedCallsFinishAndCoverEverything) {
  const Threads threads(3);
  std::vector<std::vector<int>> visits(20, std::vector<int>(50));
  threads.parallel_for(20, 1, [&](std::int64_t outer, std::int64_t) {
    threads.parallel_for(50, 7, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(outer)][static_cast<std::size_t>(i)];
    });
  });
  for (const auto& row : visits) EXPECT_EQ(row, std::vector<int>(50, 1));
}

TEST(Threads, AThreadWaitingForItsOwnPiecesTakesNoOthers) {
  const Threads threads(3);
  static thread_local bool in_a_call = false;
  std::mutex mutex;
  std::condition_variable changed;
  int begun = 0;
  bool other_call_done = false;
  std::atomic<bool> strayed = false;

  // Another thread's call, made while this thread waits with nothing of its own left to do.
  std::thread other([&] {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return begun == 2; });
    }
    threads.parallel_for(200, 1, [&](std::int64_t begin, std::int64_t) {
      if (in_a_call) strayed = true;
      volatile std::int64_t work = begin;
      for (int i = 0; i < 20'000; ++i) work = work + i;
    });
    const std::lock_guard lock(mutex);
    other_call_done = true;
    changed.notify_all();
  });

  in_a_call = true;
  const std::thread::id caller = std::this_thread::get_id();
  threads.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    std::unique_lock lock(mutex);
    ++begun;
    changed.notify_all();
    changed.wait(lock, [&] { return begun == 2; });
    if (std::this_thread::get_id() != caller) changed.wait(lock, [&] { return other_call_done; });
  });
  in_a_call = false;
  other.join();
  EXPECT_FALSE(strayed);
}

TEST(Threads, SeveralThreadsMayCallAtOnce) {
  const Threads threads(2);
  std::vector<std::int64_t> sums(4);
  std::vector<std::thread> callers;
  for (std::int64_t& sum : sums) {
    callers.emplace_back([&threads, &sum] {
      std::atomic<std::int64_t> total = 0;
      threads.parallel_for(10'000, 100, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) total += i;
      });
      sum = total;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sums, std::vector<std::int64_t>(4, 9999 * 10'000 / 2));
}

TEST(Threads, AnExceptionReachesTheCallerAndThePoolSurvivesIt) {
  for (const int count : {1, 3}) {
    const Threads threads(count);
    const auto run = [&] {
      threads.parallel_for(100, 1, [](std::int64_t begin, std::int64_t) {
        if (begin == 42) throw std::out_of_range("piece 42");
      });
    };
    EXPECT_THROW(run(), std::out_of_range);
    EXPECT_EQ(pieces_of(threads, 30, 10).size(), 3u);
  }
}

}  // namespace
}  // namespace hayloft::offload
