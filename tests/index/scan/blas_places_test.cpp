#include "index/scan/blas_places.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace hayloft::index {
namespace {

TEST(BlasPlaces, NoMoreThreadsThanPlacesAreInAtOnce) {
  const int places = blas_places();
  ASSERT_GE(places, 1);
  if (places > 1000) GTEST_SKIP() << "this BLAS tells no limit";
  std::atomic<int> inside = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2 * places + 3; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 20; ++turn) {
        const BlasPlace place;
        const BlasPlace same;  // takes no second
        const int now = ++inside;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, places);
  EXPECT_EQ(inside, 0);
}

}  // namespace
}  // namespace hayloft::index
