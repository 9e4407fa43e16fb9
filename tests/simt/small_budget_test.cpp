#include "gpu/cuda/memory/device_arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/sizes.h"
#include "tests/simt/stream_fixture.h"
#include "tests/support/refusal.h"

// Device memory that is nearly all in use: what operations then make do with.
namespace hayloft::testing {
namespace {

using gpu::cuda::DeviceArena;
using test::refuses;
using Purpose = DeviceArena::Purpose;

class BudgetWith16MiBLeft : public ::testing::Test {
 protected:
  void SetUp() override {
    simt::reset();
    cuda = make_cuda({.memory_bytes = 1024 * MiB});
    const gpu::DeviceMemory memory = cuda->memory();
    taken = cuda->allocate(memory.budget_bytes - memory.used_bytes - 16 * MiB, cuda->stream());
  }

  std::unique_ptr<gpu::Backend> cuda;
  gpu::Buffer taken;
};

TEST_F(BudgetWith16MiBLeft, APromptIsReadInTilesOfManyTokens) {
  constexpr int query_heads = 32, d = 16, T = 64;
  for (const auto host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
    SharedCache cache(*cuda, {.kv_heads = 1, .head_dim = d, .stored = 100, .tail = T}, host);
    const gpu::Buffer q = upload(*cuda, normal(T * query_heads * d, 1));
    const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
    const std::int64_t before = simt::launches("attend_keys");
    cuda->attend_causal(cache.on_cuda(), q.as<float>(), T, query_heads, {}, out.as<float>(), cuda->stream());
    cuda->synchronize(cuda->stream());
    EXPECT_EQ(simt::launches("attend_keys") - before, 2) << "one for the store and one for the tail";
  }
}

TEST_F(BudgetWith16MiBLeft, WhatIsSetAsideForStepsIsNotHadByOthers) {
  EXPECT_TRUE(refuses([&] { cuda->allocate(17 * MiB, cuda->stream()); }, {"16.0 MiB left", "raise --gpu-memory"}));
  const gpu::Buffer rest = cuda->allocate(16 * MiB, cuda->stream());
  const gpu::DeviceMemory memory = cuda->memory();
  EXPECT_EQ(memory.used_bytes, memory.budget_bytes);
}

// Steps have their memory from the beginning.
class MemoryOfSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    simt::reset();
    cuda = make_cuda({.memory_bytes = 1024 * MiB});
  }

  std::unique_ptr<gpu::Backend> cuda;
};

TEST_F(MemoryOfSteps, IsThereWhenOthersHaveTakenTheRestOfTheDevice) {
  constexpr int query_heads = 4, d = 32, k = 50;
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = d, .stored = 1000, .tail = 40});
  const gpu::Buffer q = upload(*cuda, random_query(query_heads, d, 1));
  const gpu::Buffer positions = cuda->allocate(2 * k * sizeof(std::int32_t), cuda->stream());
  const gpu::Buffer alpha = cuda->allocate(query_heads * sizeof(float), cuda->stream());
  const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  simt::device().memory_bytes = total - free;
  const std::int64_t grown = simt::pool_growths();

  gpu::SparqSelect args;
  args.rank = 8;
  args.k = k;
  args.limit = 1000;
  gpu::Attended what;
  what.positions = positions.as<std::int32_t>();
  what.lists = 2;
  what.k = k;
  what.alpha = alpha.as<float>();
  what.ranges[0] = {1000, 1040};
  for (int step = 0; step < 3; ++step) {
    cuda->select_sparq(cache.on_cuda(), q.as<float>(), query_heads, args, positions.as<std::int32_t>(),
                       alpha.as<float>(), cuda->stream());
    cuda->attend(cache.on_cuda(), q.as<float>(), query_heads, what, out.as<float>(), cuda->stream());
    cuda->attend_causal(cache.on_cuda(), q.as<float>(), 1, query_heads, {}, out.as<float>(), cuda->stream());
    cuda->synchronize(cuda->stream());
  }
  EXPECT_EQ(simt::pool_growths(), grown) << "no step asked the device for memory";
}

TEST_F(MemoryOfSteps, IsTakenInPartWhereTheDriverRefusesTheWholeThoughTheDeviceHasIt) {
  cuda.reset();
  simt::fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  EXPECT_NE(make_cuda({.memory_bytes = 1024 * MiB}), nullptr);
}

TEST_F(MemoryOfSteps, IsRefusedAtOnceWhereTheDeviceHasNotGotIt) {
  cuda.reset();
  simt::device().memory_bytes = 64 * MiB;
  EXPECT_TRUE(refuses([] { make_cuda({.memory_bytes = 1024 * MiB}); }, {"--gpu-memory 1.0 GiB", "64.0 MiB free"}));
}

class PoolsTest : public simt::StreamTest {};

TEST_F(PoolsTest, LastingPiecesLeaveTheRestInWholeSteps) {
  DeviceArena arena(0, 256 * MiB, 64 * MiB);
  EXPECT_EQ(arena.used_bytes(), 64 * MiB) << "is set aside";
  EXPECT_EQ(arena.driver_peak_bytes(), 64 * MiB) << "and taken";
  const std::int64_t waits = simt::host_waits();
  void* const weights = arena.allocate(33 * MiB, stream, Purpose::lasting);
  EXPECT_EQ(arena.used_bytes(), (64 + 64) * MiB);
  void* const more = arena.allocate(31 * MiB, stream, Purpose::lasting);
  EXPECT_EQ(arena.used_bytes(), (64 + 64) * MiB);
  void* const tails = arena.allocate(128 * MiB, stream);
  EXPECT_EQ(arena.used_bytes(), 256 * MiB);
  void* const step = arena.allocate(64 * MiB, stream, Purpose::step);
  EXPECT_EQ(arena.used_bytes(), 256 * MiB);
  EXPECT_TRUE(refuses([&] { arena.allocate(1, stream, Purpose::step); }, {"budget of 256.0 MiB", "0 B left"}));
  EXPECT_LE(arena.driver_peak_bytes(), 256 * MiB);
  EXPECT_EQ(simt::host_waits(), waits);
  arena.free(weights, 33 * MiB, stream);
  arena.free(more, 31 * MiB, stream);
  arena.free(tails, 128 * MiB, stream);
  arena.free(step, 64 * MiB, stream);
  EXPECT_EQ(arena.used_bytes(), 64 * MiB);
  arena.free(arena.allocate(192 * MiB, stream), 192 * MiB, stream);
  EXPECT_LE(arena.driver_peak_bytes(), 256 * MiB);
}

TEST_F(PoolsTest, WeightsThatAreLoadedLaterTakeWhatSessionsHaveGivenUp) {
  DeviceArena arena(0, 256 * MiB);
  arena.free(arena.allocate(200 * MiB, stream), 200 * MiB, stream);
  void* const weights = arena.allocate(200 * MiB, stream, Purpose::lasting);
  EXPECT_LE(arena.driver_peak_bytes(), 256 * MiB);
  void* const tails = arena.allocate(30 * MiB, stream);
  void* const others = arena.allocate(2 * MiB, stream, Purpose::lasting);  // beside a session
  EXPECT_LE(arena.driver_peak_bytes(), 256 * MiB);
  arena.free(weights, 200 * MiB, stream);
  arena.free(tails, 30 * MiB, stream);
  arena.free(others, 2 * MiB, stream);
}

TEST_F(PoolsTest, RoomForAStepIsMadeBeforeItIsSaidToBeMissing) {
  DeviceArena arena(0, 128 * MiB, 32 * MiB);
  void* kept = arena.allocate(90 * MiB, stream);
  int asked = 0;
  arena.when_short([&](std::uint64_t bytes) {
    ++asked;
    EXPECT_EQ(bytes, 34 * MiB);
    arena.free(kept, 90 * MiB, stream);
  });
  EXPECT_EQ(arena.room_for_step(20 * MiB), 32 * MiB);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(arena.room_for_step(40 * MiB), 96 * MiB);
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace hayloft::testing
