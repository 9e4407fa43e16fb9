#include <cstddef>
#include <vector>

#include "gpu/cuda/kernels/launch.h"
#include "tests/simt/stream_fixture.h"

// The CUDA runtime's double: memory, who may touch it and when.
namespace hayloft::simt {
namespace {

using gpu::cuda::launch;

using RuntimeTest = StreamTest;

TEST_F(RuntimeTest, DeviceMemoryEndsWhereTheDeviceDoes) {
  device().memory_bytes = device_bytes() + 1000;
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(cudaMallocAsync(&first, 800, stream), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&second, 800, stream), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFreeAsync(first, stream), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&second, 800, stream), cudaSuccess);
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 200u);
  EXPECT_EQ(total, device().memory_bytes);
  EXPECT_EQ(cudaFreeAsync(second, stream), cudaSuccess);
}

TEST_F(RuntimeTest, UnwrittenMemoryIsNoNumberAndNothingOfWhatWasThereBefore) {
  const std::vector<unsigned char> unwritten((std::size_t{3} << 20) + 100, 0xff);
  std::vector<unsigned char> held(unwritten.size());
  for (int time = 0; time < 2; ++time) {
    void* device = nullptr;
    ASSERT_EQ(cudaMallocAsync(&device, held.size(), stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(held.data(), device, held.size(), cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(held, unwritten);
    EXPECT_EQ(cudaMemsetAsync(device, 1, held.size(), stream), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(device, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
}

TEST_F(RuntimeTest, RegistrationHasALimitAndNoOverlaps) {
  alignas(4096) static std::byte memory[8192];
  device().registrable_bytes = pinned_bytes() + 4096;
  EXPECT_EQ(cudaHostRegister(memory, 8192, cudaHostRegisterMapped), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaHostRegister(memory, 4096, cudaHostRegisterMapped), cudaSuccess);
  device().registrable_bytes = pinned_bytes() + 8192;
  EXPECT_EQ(cudaHostRegister(memory + 2048, 4096, cudaHostRegisterMapped), cudaErrorHostMemoryAlreadyRegistered);
  void* mapped = nullptr;
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, memory + 100, 0), cudaSuccess);
  EXPECT_EQ(mapped, memory + 100);
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, memory + 5000, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(memory + 100), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaHostUnregister(memory), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
}

TEST_F(RuntimeTest, CopiesMustFitTheirMemory) {
  int* device = on_device<int>(4);
  std::vector<int> host(8);
  const auto copy = [&](void* to, const void* from, std::size_t n, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, n * sizeof(int), kind, stream);
  };
  EXPECT_EQ(copy(device, host.data(), 4, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(copy(device, host.data(), 5, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data() + 4, host.data(), 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device, host.data(), 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 4, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeTest, ACopyDoesNotCrossFromOneRegistrationToAnotherNorOutOfOne) {
  alignas(4096) static std::byte memory[3 * 4096];
  ASSERT_EQ(cudaHostRegister(memory, 4096, cudaHostRegisterMapped), cudaSuccess);
  ASSERT_EQ(cudaHostRegister(memory + 4096, 4096, cudaHostRegisterMapped), cudaSuccess);
  auto* device = on_device<std::byte>(sizeof memory);
  const auto copy = [&](std::size_t begin, std::size_t end) {
    return cudaMemcpyAsync(device, memory + begin, end - begin, cudaMemcpyHostToDevice, stream);
  };
  EXPECT_EQ(copy(0, 4096), cudaSuccess);
  EXPECT_EQ(copy(4000, 4100), cudaErrorInvalidValue);
  EXPECT_EQ(copy(8000, 8200), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(memory), cudaSuccess);
  EXPECT_EQ(copy(0, 4096), cudaSuccess);
  EXPECT_EQ(copy(4000, 4100), cudaErrorInvalidValue);
  // Also where only what lies between the rows does so.
  EXPECT_EQ(cudaMemcpy2DAsync(device, 16, memory, 8192, 16, 2, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(memory + 4096), cudaSuccess);
  EXPECT_EQ(cudaMemcpy2DAsync(device, 16, memory, 8192, 16, 2, cudaMemcpyHostToDevice, stream), cudaSuccess);
}

using RuntimeDeathTest = RuntimeTest;

TEST_F(RuntimeDeathTest, TheHostMayNotTouchDeviceMemory) {
  int* data = on_device<int>(1);
  EXPECT_DEATH(*data = 1, "use-after-poison");
  launch("write_value", write_value, {1, 1}, stream, data, 1);
  cudaStreamSynchronize(stream);
  EXPECT_DEATH(*data = 1, "use-after-poison");
}

TEST_F(RuntimeDeathTest, MemoryLivesInStreamOrder) {
  int* data = nullptr;
  const auto write_on = [&](cudaStream_t where) {
    launch("write_value", write_value, {1, 1}, where, data, 1);
    cudaStreamSynchronize(where);
  };
  ASSERT_EQ(cudaMallocAsync(&data, sizeof(int), stream), cudaSuccess);
  // Without an event some seed runs the kernel before the allocation.
  const auto use_early = [&] {
    cudaMallocAsync(&data, sizeof(int), stream);
    write_on(other);
    return true;
  };
  EXPECT_DEATH(right_for(20, use_early), "use-after-poison");
  write_on(stream);
  cudaFreeAsync(data, stream);
  EXPECT_DEATH(write_on(stream), "use-after-free");
  cudaStreamSynchronize(stream);
}

TEST_F(RuntimeDeathTest, FreedDeviceMemoryIsGone) {
  void* data = nullptr;
  cudaMalloc(&data, 4);
  cudaFree(data);
  const auto use = [&] {
    launch("write_value", write_value, {1, 1}, stream, static_cast<int*>(data), 1);
    cudaStreamSynchronize(stream);
  };
  EXPECT_DEATH(use(), "use-after-free");
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace hayloft::simt
