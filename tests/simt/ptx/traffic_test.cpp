#include "tests/simt/ptx/traffic.h"

#include <gtest/gtest.h>

namespace hayloft::simt::ptx {
namespace {

using Place = TrafficCounter::Place;

// One access of 32 lanes, `stride` bytes apart.
Traffic access(Place place, unsigned bytes, unsigned stride, std::uint64_t first = 0, bool write = false) {
  TrafficCounter counter;
  for (unsigned lane = 0; lane < 32; ++lane) counter.note(place, first + lane * stride, bytes, write, lane);
  counter.end_access();
  return counter.total();
}

TEST(PtxTrafficTest, PiecesOf32BytesCountOncePerAccess) {
  EXPECT_EQ(access(Place::device, 4, 4).device.transactions, 4u);
  EXPECT_EQ(access(Place::device, 4, 4, 16).device.transactions, 5u) << "across the edge of a piece";
  EXPECT_EQ(access(Place::device, 16, 16).device.transactions, 16u);
  EXPECT_EQ(access(Place::device, 4, 32).device.transactions, 32u);
  EXPECT_EQ(access(Place::device, 4, 0).device.transactions, 1u);
}

TEST(PtxTrafficTest, BytesAreThoseThatLanesName) {
  const Traffic read = access(Place::device, 8, 0);
  EXPECT_EQ(read.device.accesses, 1u);
  EXPECT_EQ(read.device.read_bytes, 256u);
  EXPECT_EQ(read.device.written_bytes, 0u);
  EXPECT_EQ(access(Place::device, 8, 8, 0, true).device.written_bytes, 256u);
}

TEST(PtxTrafficTest, LinesAndPagesOfPinnedMemoryCountOnceInALaunch) {
  TrafficCounter counter;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (unsigned lane = 0; lane < 32; ++lane) counter.note(Place::pinned, 4096 - 64 + lane * 4, 4, false, lane);
    counter.end_access();
  }
  EXPECT_EQ(counter.total().pinned.transactions, 12u);
  EXPECT_EQ(counter.total().pinned_lines, 2u);
  EXPECT_EQ(counter.total().pinned_pages, 2u);
  EXPECT_EQ(counter.total().device.accesses, 0u);
}

TEST(PtxTrafficTest, SharedMemoryTakesAPassPerWordOfTheBusiestBank) {
  EXPECT_EQ(access(Place::shared, 4, 4).shared.transactions, 1u);
  EXPECT_EQ(access(Place::shared, 4, 8).shared.transactions, 2u);
  EXPECT_EQ(access(Place::shared, 4, 128).shared.transactions, 32u);
  EXPECT_EQ(access(Place::shared, 4, 0).shared.transactions, 1u) << "a word that all read";
  EXPECT_EQ(access(Place::shared, 2, 2).shared.transactions, 1u);
  EXPECT_EQ(access(Place::shared, 16, 16).shared.transactions, 4u);
  EXPECT_EQ(access(Place::shared, 16, 528).shared.transactions, 4u) << "rows padded by 16 bytes";
  EXPECT_EQ(access(Place::shared, 16, 512).shared.transactions, 32u);
}

}  // namespace
}  // namespace hayloft::simt::ptx
