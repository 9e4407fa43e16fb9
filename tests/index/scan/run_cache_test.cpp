#include "index/scan/run_cache.h"

#include <gtest/gtest.h>

namespace hayloft::index {
namespace {

int read(RunCache& cache, std::vector<std::int32_t> runs) {
  return cache.read(runs);
}

TEST(RunCacheTest, WhatFitsIsHeldFromTheNextStepOn) {
  RunCache cache(8, 3);
  EXPECT_EQ(read(cache, {1, 5}), 0);
  EXPECT_EQ(read(cache, {1, 5}), 2);
  EXPECT_EQ(read(cache, {5, 7}), 1);
  EXPECT_EQ(read(cache, {7, 5, 1}), 3);
}

TEST(RunCacheTest, ARunReadMoreOftenTakesTheSlotOfOneReadLess) {
  RunCache cache(8, 2);
  EXPECT_EQ(read(cache, {0, 1}), 0);
  EXPECT_EQ(read(cache, {0, 2}), 1) << "2 has been read later than 1, and takes its place";
  for (int step = 0; step < 3; ++step) EXPECT_EQ(read(cache, {0, 2}), 2);
  EXPECT_EQ(read(cache, {0, 1}), 1) << "1 was read twice, long ago: 2 stays";
  EXPECT_EQ(read(cache, {0, 2}), 2);
}

TEST(RunCacheTest, WhatAStepReadsIsNotGivenUpInThatStep) {
  RunCache cache(8, 2);
  for (int step = 0; step < 5; ++step) read(cache, {3});
  EXPECT_EQ(read(cache, {1, 2, 4}), 0) << "2 and 4 find no slot but those of 3, which counts for more, and of 1";
  EXPECT_EQ(read(cache, {1, 3}), 2);
}

TEST(RunCacheTest, WithoutSlotsNothingIsHeld) {
  RunCache cache(4, 0);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(read(cache, {0}), 0);
}

}  // namespace
}  // namespace hayloft::index
