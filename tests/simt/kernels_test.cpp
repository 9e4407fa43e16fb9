#include <gtest/gtest.h>

#include <vector>

#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/warp.cuh"
#include "tests/simt/control.h"

// Kernels on the shim: what works on a device works, and what must not be done ends with an error.
namespace hayloft::simt {
namespace {

using namespace gpu::cuda;

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = shuffle(10 * lane, 3);
  out[32 + lane] = shuffle_xor(lane, 5);
  out[64 + lane] = shuffle_up(lane, 2);
  out[96 + lane] = static_cast<int>(ballot(lane % 3 == 0));
}

class KernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    reset();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override { cudaStreamDestroy(stream); }

  template <class T>
  T* device(int n) {
    T* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, static_cast<std::size_t>(n) * sizeof(T)), cudaSuccess);
    return data;
  }
  template <class T>
  std::vector<T> host(const T* data, int n) {
    std::vector<T> values(static_cast<std::size_t>(n));
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    return values;
  }

  cudaStream_t stream = nullptr;
};

TEST_F(KernelsTest, ShufflesAndVotesSeeWhatTheLanesHold) {
  int* out = device<int>(128);
  launch("shuffles", shuffles, {1, 32}, stream, out);
  const std::vector<int> values = host(out, 128);
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(values[static_cast<std::size_t>(lane)], 30);
    EXPECT_EQ(values[static_cast<std::size_t>(32 + lane)], lane ^ 5);
    EXPECT_EQ(values[static_cast<std::size_t>(64 + lane)], lane < 2 ? lane : lane - 2);
    EXPECT_EQ(static_cast<unsigned>(values[static_cast<std::size_t>(96 + lane)]), 0x49249249u);
  }
  cudaFree(out);
}

}  // namespace
}  // namespace hayloft::simt
