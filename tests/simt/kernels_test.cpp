#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"
#include "tests/simt/device/symbols.h"
#include "tests/simt/stream_fixture.h"

// Kernels on the shim: what works on a device works, and what must not be done is an error.
namespace hayloft::simt {
namespace {

using gpu::cuda::allow_shared;
using gpu::cuda::kWarp;
using gpu::cuda::launch;

class KernelsTest : public StreamTest {
 protected:
  // Returns what the shim says about this kernel, run with so many threads.
  template <class... Parameters, class... Arguments>
  std::string failure(void (*kernel)(Parameters...), unsigned threads, Arguments... arguments) {
    reset(1);
    launch("kernel", kernel, {1, threads, 64}, stream, arguments...);
    const cudaError_t result = cudaStreamSynchronize(stream);
    EXPECT_EQ(result, kernel_failure().empty() ? cudaSuccess : cudaErrorLaunchFailure);
    const std::string message = kernel_failure();
    reset(1);
    return message;
  }
};

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = gpu::cuda::shuffle(10 * lane, 3);
  out[32 + lane] = gpu::cuda::shuffle_xor(lane, 5);
  out[64 + lane] = gpu::cuda::shuffle_up(lane, 2);
  out[96 + lane] = static_cast<int>(gpu::cuda::ballot(lane % 3 == 0));
}

TEST_F(KernelsTest, ShufflesAndVotesSeeWhatTheLanesHold) {
  int* out = on_device<int>(128);
  launch("shuffles", shuffles, {1, 32}, stream, out);
  const std::vector<int> values = to_host(out, 128);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(values[lane], 30);
    EXPECT_EQ(values[32 + lane], static_cast<int>(lane ^ 5));
    EXPECT_EQ(values[64 + lane], static_cast<int>(lane < 2 ? lane : lane - 2));
    EXPECT_EQ(static_cast<unsigned>(values[96 + lane]), 0x49249249u);
  }
}

__global__ void vote_and_sum(unsigned* votes, float* sums) {
  votes[threadIdx.x] = gpu::cuda::ballot(true);
  sums[threadIdx.x] = gpu::cuda::warp_sum(1.0f);
}

TEST_F(KernelsTest, LanesThatDoNotExistNeitherVoteNorHoldNumbers) {
  auto* votes = on_device<unsigned>(40);
  auto* sums = on_device<float>(40);
  launch("vote_and_sum", vote_and_sum, {1, 40}, stream, votes, sums);
  const auto voted = to_host(votes, 40);
  const auto summed = to_host(sums, 40);
  EXPECT_EQ(voted[0], 0xffffffffu);
  EXPECT_EQ(summed[0], 32.0f);
  EXPECT_EQ(voted[39], 0xffu);
  EXPECT_TRUE(std::isnan(summed[39]));
}

__global__ void exponentials(const float* x, float* precise, float* fast) {
  precise[threadIdx.x] = gpu::cuda::expf(x[threadIdx.x]);
  fast[threadIdx.x] = gpu::cuda::fast_exp(x[threadIdx.x]);
}

TEST_F(KernelsTest, ExponentialsAreOffByWhatADevicesMayBeAndNoMore) {
  std::vector<float> x(512);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = -static_cast<float>(i) / 8;
  float* arguments = on_device<float>(x.size());
  float *precise = on_device<float>(x.size()), *fast = on_device<float>(x.size());
  cudaMemcpyAsync(arguments, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice, stream);
  launch("exponentials", exponentials, {1, 512}, stream, arguments, precise, fast);
  const auto units = [&](const std::vector<float>& y) {  // in the last place, the most that one is off by
    int most = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      most = std::max(most, std::abs(std::bit_cast<int>(y[i]) - std::bit_cast<int>(std::exp(x[i]))));
    }
    return most;
  };
  EXPECT_EQ(units(to_host(precise, x.size())), 2);
  EXPECT_GT(units(to_host(fast, x.size())), 30);
  EXPECT_LE(units(to_host(fast, x.size())), 2 + 1.173 * 64);
}

__global__ void block_sums(float* out) {
  __shared__ float scratch[1024 / kWarp + 1];
  const float sum = gpu::cuda::block_sum(static_cast<float>(threadIdx.x), scratch);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

TEST_F(KernelsTest, BlocksOfAnySizeUpToTheLargestMeetAtTheirBarriers) {
  auto* out = on_device<float>(3);
  for (const unsigned threads : {32u, 96u, 256u, 1024u}) {
    launch("block_sums", block_sums, {3, threads}, stream, out);
    const float expected = static_cast<float>(threads * (threads - 1) / 2);
    EXPECT_EQ(to_host(out, 3), std::vector<float>(3, expected)) << threads;
  }
}

__global__ void number_threads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  gpu::cuda::atomic_add(&out[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
}

TEST_F(KernelsTest, EveryThreadOfEveryBlockRunsOnce) {
  constexpr std::size_t all = 2 * 3 * 2 * 4 * 2 * 5;
  int* out = on_device<int>(all);
  cudaMemsetAsync(out, 0, all * sizeof(int), stream);
  launch("number_threads", number_threads, {dim3(2, 3, 2), dim3(4, 2, 5)}, stream, out);
  EXPECT_EQ(to_host(out, all), std::vector<int>(all, 1));
}

__global__ void note_order(int* next, int* order) {
  order[gpu::cuda::atomic_add(next, 1)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

TEST_F(KernelsTest, TheOrderOfBlocksAndThreadsIsTheSeeds) {
  int* next = on_device<int>(1);
  int* order = on_device<int>(16);
  const auto order_for = [&](std::uint64_t seed) {
    reset(seed);
    cudaMemsetAsync(next, 0, sizeof(int), stream);
    launch("note_order", note_order, {4, 4}, stream, next, order);
    return to_host(order, 16);
  };
  std::set<std::vector<int>> threads;
  std::set<std::vector<int>> blocks;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const std::vector<int> seen = order_for(seed);
    EXPECT_EQ(order_for(seed), seen);
    threads.insert({seen[0] % 4, seen[1] % 4, seen[2] % 4, seen[3] % 4});
    blocks.insert({seen[0] / 4, seen[4] / 4, seen[8] / 4, seen[12] / 4});
  }
  EXPECT_GT(threads.size(), 3u);
  EXPECT_GT(blocks.size(), 3u);
}

__global__ void reverse(int* out, bool wait) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (wait) __syncthreads();
  out[threadIdx.x] = values[63 - threadIdx.x];
}

TEST_F(KernelsTest, AMissingBarrierShows) {
  std::vector<int> expected(64);
  std::iota(expected.rbegin(), expected.rend(), 0);
  int* out = on_device<int>(64);
  const auto right = [&](bool wait) {
    return right_for(4, [&] {
      launch("reverse", reverse, {1, 64}, stream, out, wait);
      return to_host(out, 64) == expected;
    });
  };
  EXPECT_EQ(right(true), 4);
  EXPECT_EQ(right(false), 0);
}

__global__ void read_shared(std::uint32_t* out) {
  __shared__ std::uint32_t fixed[3];
  auto* dynamic = reinterpret_cast<std::uint32_t*>(gpu::cuda::dynamic_shared());
  out[2 * blockIdx.x] = fixed[1];
  out[2 * blockIdx.x + 1] = dynamic[0];
  fixed[1] = dynamic[0] = 7;
}

TEST_F(KernelsTest, SharedMemoryHoldsNoNumbersWhenABlockBegins) {
  auto* out = on_device<std::uint32_t>(6);
  launch("read_shared", read_shared, {3, 1, 16}, stream, out);
  EXPECT_EQ(to_host(out, 6), std::vector<std::uint32_t>(6, 0xffffffffu));
}

[[gnu::always_inline]] inline std::uint32_t exchange_of_inlined(std::uint32_t x) {
  __shared__ std::uint32_t value;
  return std::exchange(value, x);
}
[[gnu::noinline]] std::uint32_t exchange_of_called(std::uint32_t x) {
  __shared__ std::uint32_t value;
  return std::exchange(value, x);
}
__global__ void exchanges(std::uint32_t* out, bool called) {
  out[blockIdx.x] = called ? exchange_of_called(7) : exchange_of_inlined(7);
}

TEST_F(KernelsTest, SharedMemoryOfInlinedFunctionsHoldsNoNumbersEither) {
  auto* out = on_device<std::uint32_t>(3);
  launch("exchanges", exchanges, {3, 1}, stream, out, false);
  EXPECT_EQ(to_host(out, 3), std::vector<std::uint32_t>(3, 0xffffffffu));
}

TEST_F(KernelsTest, SharedMemoryThatNoBlockWouldFindWithoutNumbersIsAnError) {
  auto* out = on_device<std::uint32_t>(1);
  std::string message;
  for (int i = 0; i < 64 && message.empty(); ++i) message = failure(exchanges, 1, out, true);
  EXPECT_NE(message.find("value[abi:simt_shared] is used by a kernel that does not declare it"), std::string::npos)
      << message;
}

// GCC guards no variable of an inline function or of a template with external linkage.
TEST_F(KernelsTest, AccessesPastSharedVariablesWillBeReported) {
  EXPECT_FALSE(shared_variables().empty());
  for (const SharedVariable& variable : shared_variables()) {
    EXPECT_TRUE(variable.guarded) << variable.name << ": put its function into an unnamed namespace of the .cu file";
  }
}

// --- errors

__global__ void some_return(bool before) {
  if (before && threadIdx.x < 10) return;
  __syncthreads();
}

TEST_F(KernelsTest, ABarrierThatSomeNeverReachIsAnError) {
  EXPECT_EQ(failure(some_return, 64, false), "");
  const std::string message = failure(some_return, 64, true);
  EXPECT_NE(message.find("some_return(bool): divergent barrier: 54 of 64 threads wait for ever and 10 have returned"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("__syncthreads at"), std::string::npos) << message;
  EXPECT_NE(message.find("kernels_test.cpp"), std::string::npos) << message;
}

__global__ void two_barriers() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(KernelsTest, TwoBarriersAreNotOne) {
  EXPECT_NE(failure(two_barriers, 64).find("divergent barrier"), std::string::npos);
}

__global__ void lanes_part() {
  if (threadIdx.x % 2 == 0) {
    gpu::cuda::warp_barrier();
  } else {
    gpu::cuda::ballot(true);
  }
}
__global__ void lane_returns() {
  if (threadIdx.x == 33) return;
  gpu::cuda::shuffle(1, 0);
}
__global__ void warp_waits_for_block() {
  if (threadIdx.x < 16) {
    gpu::cuda::warp_barrier();
  }
  __syncthreads();
}

TEST_F(KernelsTest, LanesThatDoNotComeAlongAreAnError) {
  EXPECT_NE(failure(lanes_part, 32).find("divergent"), std::string::npos);
  EXPECT_NE(failure(lane_returns, 64).find("shuffle at"), std::string::npos);
  EXPECT_NE(failure(warp_waits_for_block, 32).find("wait for ever"), std::string::npos);
}

__global__ void throws() {
  if (threadIdx.x == 5) throw std::runtime_error("no such thing");
  __syncthreads();
}

__global__ void touches_shared(int how) {
  __shared__ uint4 fixed[2];
  auto* const dynamic = reinterpret_cast<uint4*>(gpu::cuda::dynamic_shared());
  fixed[1] = dynamic[1] = uint4{1, 2, 3, 4};
  if (how == 1) dynamic[2] = gpu::cuda::load16_once(fixed + 1);
  if (how == 2) dynamic[2].x = gpu::cuda::load4_once(dynamic + 1);
  if (how == 3) gpu::cuda::store16(dynamic + 1, fixed[1]);
}

// Their instructions are those of global memory: the address of a shared variable means another place there.
TEST_F(KernelsTest, LoadsPastL1AndWideStoresAreOfGlobalMemoryOnly) {
  EXPECT_EQ(failure(touches_shared, 1, 0), "");
  EXPECT_NE(failure(touches_shared, 1, 1).find("load16_once of shared memory"), std::string::npos);
  EXPECT_NE(failure(touches_shared, 1, 2).find("load4_once of shared memory"), std::string::npos);
  EXPECT_NE(failure(touches_shared, 1, 3).find("store16 of shared memory"), std::string::npos);
}

TEST_F(KernelsTest, AnExceptionEndsTheLaunch) {
  EXPECT_NE(failure(throws, 32).find("exception in thread (5, 0, 0) of block (0, 0, 0): no such thing"),
            std::string::npos);
}

TEST_F(KernelsTest, AfterAFailedKernelEveryCallFails) {
  launch("some_return", some_return, {1, 64}, stream, true);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 16), cudaSuccess);  // nobody has waited yet
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 16), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  reset();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// --- errors that the sanitizers report: they end the process

__global__ void past_static(int i) {
  __shared__ int values[10];
  int* const at = values;
  gpu::cuda::atomic_add(at + i, 1);
}
__global__ void past_dynamic(int i) {
  gpu::cuda::dynamic_shared()[i] = 1;
}
__global__ void write_to(char* out) {
  *out = 1;
}
__global__ void read_four(const int* in, int* out) {
  *out = static_cast<int>(gpu::cuda::load16(in).x);
}

using KernelsDeathTest = KernelsTest;

TEST_F(KernelsDeathTest, AccessesPastSharedMemoryAreReported) {
  const auto run = [&](void (*kernel)(int), int i) {
    launch("past", kernel, {1, 1, 10}, stream, i);
    cudaStreamSynchronize(stream);
  };
  run(past_static, 9);
  EXPECT_DEATH(run(past_static, 10), "global-buffer-overflow");
  run(past_dynamic, 9);
  EXPECT_DEATH(run(past_dynamic, 10), "heap-buffer-overflow");
}

TEST_F(KernelsDeathTest, AccessesPastDeviceMemoryAreReported) {
  char* data = on_device<char>(13);
  const auto run = [&](char* at) {
    launch("write_to", write_to, {1, 1}, stream, at);
    cudaStreamSynchronize(stream);
  };
  run(data + 12);
  EXPECT_DEATH(run(data + 13), "AddressSanitizer");
  EXPECT_DEATH(run(data - 1), "AddressSanitizer");
}

TEST_F(KernelsDeathTest, MisalignedLoadsAreReported) {
  int* data = on_device<int>(8);
  const auto run = [&](const int* at) {
    launch("read_four", read_four, {1, 1}, stream, at, data);
    cudaStreamSynchronize(stream);
  };
  run(data + 4);
  EXPECT_DEATH(run(data + 2), "misaligned address");
}

}  // namespace
}  // namespace hayloft::simt
