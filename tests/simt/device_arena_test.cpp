#include "gpu/cuda/memory/device_arena.h"

#include "tests/simt/sizes.h"
#include "tests/simt/stream_fixture.h"
#include "tests/support/refusal.h"

// The budget of device memory by the driver's count, with streams that lag behind one another.
namespace hayloft::simt {
namespace {

using gpu::cuda::DeviceArena;
using test::refuses;

using DeviceArenaTest = StreamTest;

TEST_F(DeviceArenaTest, WhatOneStreamFreesServesAnotherWithinTheBudget) {
  DeviceArena arena(0, 64 * MiB);
  void* const first = arena.allocate(40 * MiB, stream);
  arena.free(first, 40 * MiB, stream);  // which the stream has yet to come to
  void* const second = arena.allocate(40 * MiB, other);
  EXPECT_EQ(arena.used_bytes(), 40 * MiB);
  EXPECT_LE(arena.driver_peak_bytes(), 64 * MiB);
  arena.free(second, 40 * MiB, other);
}

TEST_F(DeviceArenaTest, WhatAStreamFreesServesItAgainWithoutWaiting) {
  DeviceArena arena(0, 64 * MiB);
  for (int i = 0; i < 10; ++i) arena.free(arena.allocate(40 * MiB, stream), 40 * MiB, stream);
  EXPECT_EQ(host_waits(), 0);
  EXPECT_LE(arena.driver_peak_bytes(), 64 * MiB);
}

TEST_F(DeviceArenaTest, ABudgetLeftInPiecesTooSmallIsSaidToBe) {
  DeviceArena arena(0, 64 * MiB);
  void* const some = arena.allocate(50 * MiB, stream);
  fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  fail_call("cudaMallocFromPoolAsync", 2, cudaErrorMemoryAllocation);
  EXPECT_TRUE(
      refuses([&] { arena.allocate(10 * MiB, stream); },
              {"budget of 64.0 MiB", "asked for 10.0 MiB", "14.0 MiB left but not in one piece", "raise --gpu"}));
  EXPECT_EQ(arena.used_bytes(), 50 * MiB);
  arena.free(some, 50 * MiB, stream);
}

TEST_F(DeviceArenaTest, WhatLiesBetweenPiecesTooSmallIsGivenUpBeforeTheBudgetIsSaidToBeExhausted) {
  DeviceArena arena(0, 64 * MiB);
  void* kept = arena.allocate(MiB, stream);
  arena.when_short([&](std::uint64_t bytes) {
    EXPECT_EQ(bytes, UINT64_MAX);
    arena.free(kept, MiB, stream);
    kept = nullptr;
  });
  fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  fail_call("cudaMallocFromPoolAsync", 2, cudaErrorMemoryAllocation);
  void* const piece = arena.allocate(63 * MiB, stream);
  EXPECT_EQ(kept, nullptr);
  arena.free(piece, 63 * MiB, stream);
}

TEST_F(DeviceArenaTest, ADriverWhosePoolsHaveNoLargestSizeServesAsWell) {
  fail_call("cudaMemPoolCreate", 1, cudaErrorInvalidValue);
  DeviceArena arena(0, 64 * MiB);
  void* const piece = arena.allocate(64 * MiB, stream);
  arena.free(piece, 64 * MiB, stream);
}

TEST_F(DeviceArenaTest, APoolOfStepsThatTheDriverFillsInPartServesAllTheSame) {
  for (const int refused : {1, 2}) {  // then 32 MiB are filled, then nothing is
    reset();
    for (int n = 1; n <= refused; ++n) fail_call("cudaMallocFromPoolAsync", n, cudaErrorMemoryAllocation);
    DeviceArena arena(0, 192 * MiB, 96 * MiB);
    void* const piece = arena.allocate(96 * MiB, stream, DeviceArena::Purpose::step);
    EXPECT_EQ(arena.used_bytes(), 96 * MiB);
    arena.free(piece, 96 * MiB, stream);
  }
}

class StepPiecesTest : public StreamTest {
 protected:
  static constexpr auto step = DeviceArena::Purpose::step;

  static std::int64_t driver_calls() { return calls("cudaMallocFromPoolAsync") + calls("cudaFreeAsync"); }
};

TEST_F(StepPiecesTest, ServeTheNextStepWithoutTheDriver) {
  DeviceArena arena(0, 192 * MiB, 96 * MiB);
  arena.keep_steps_of(stream);
  void* const first = arena.allocate(16 * MiB, stream, step);
  arena.free(first, 16 * MiB, stream);
  const std::int64_t before = driver_calls();
  void* const second = arena.allocate(15 * MiB, stream, step);  // an eighth less will do
  EXPECT_EQ(second, first);
  EXPECT_EQ(driver_calls(), before);
  arena.free(second, 15 * MiB, stream);
  void* const smaller = arena.allocate(8 * MiB, stream, step);
  EXPECT_NE(smaller, first) << "of twice its size";
  arena.free(smaller, 8 * MiB, stream);
}

TEST_F(StepPiecesTest, OfOneStreamServeNoOther) {
  DeviceArena arena(0, 192 * MiB, 96 * MiB);
  arena.keep_steps_of(stream);
  arena.free(arena.allocate(16 * MiB, stream, step), 16 * MiB, stream);
  const std::int64_t before = driver_calls();
  arena.free(arena.allocate(16 * MiB, other, step), 16 * MiB, other);
  EXPECT_EQ(driver_calls(), before + 2);
}

TEST_F(StepPiecesTest, AreGivenUpWhereOthersHaveNoRoomBesideThem) {
  DeviceArena arena(0, 192 * MiB, 96 * MiB);
  arena.keep_steps_of(stream);
  arena.free(arena.allocate(32 * MiB, stream, step), 32 * MiB, stream);
  const std::int64_t waits = host_waits();
  void* const most = arena.allocate(96 * MiB, stream, step);
  EXPECT_EQ(arena.used_bytes(), 96 * MiB) << "of the pool for steps";
  EXPECT_EQ(host_waits(), waits);
  arena.free(most, 96 * MiB, stream);
}

TEST_F(StepPiecesTest, AreGivenUpBeforeTheHostWaitsForMemory) {
  DeviceArena arena(0, 192 * MiB, 96 * MiB);
  arena.keep_steps_of(stream);
  arena.free(arena.allocate(32 * MiB, stream, step), 32 * MiB, stream);
  fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  const std::int64_t waits = host_waits();
  void* const piece = arena.allocate(48 * MiB, stream, step);
  EXPECT_EQ(host_waits(), waits);
  const std::int64_t before = driver_calls();
  arena.free(arena.allocate(32 * MiB, stream, step), 32 * MiB, stream);
  EXPECT_EQ(driver_calls(), before + 1) << "the piece of before is the driver's again";
  arena.free(piece, 48 * MiB, stream);
}

TEST_F(DeviceArenaTest, APoolOfStepsThatTheDeviceHasNotGotIsRefused) {
  device().memory_bytes = 64 * MiB;
  EXPECT_TRUE(refuses([] { DeviceArena(0, 192 * MiB, 96 * MiB); }, {"no memory left", "96.0 MiB"}));
}

TEST_F(DeviceArenaTest, TheBudgetIsAWholeNumberOfStepsThatPoolsGrowBy) {
  const DeviceArena arena(0, 100 * MiB);
  EXPECT_EQ(arena.budget_bytes(), 96 * MiB);
}

}  // namespace
}  // namespace hayloft::simt
