#include <cstring>
#include <numeric>
#include <utility>

#include "gpu/cuda/kernels/launch.h"
#include "tests/simt/stream_fixture.h"

// The CUDA runtime's double: asynchrony, limits and faults.
namespace hayloft::simt {
namespace {

using gpu::cuda::launch;

__global__ void copy_value(int* out, const int* in) {
  *out = *in;
}
template <int n>
__global__ void idle() {}

using RuntimeTest = StreamTest;

// --- asynchrony

TEST_F(RuntimeTest, NothingRunsBeforeSomebodyWaits) {
  int* out = pinned<int>(1);
  *out = 1;
  launch("write_value", write_value, {1, 1}, stream, out, 2);
  EXPECT_EQ(*out, 1);
  EXPECT_EQ(cudaStreamQuery(other), cudaSuccess);  // which runs one operation, here the only one
  EXPECT_EQ(*out, 2);
}

TEST_F(RuntimeTest, AMissingEventShowsForSomeSeeds) {
  int* value = on_device<int>(1);
  int* out = on_device<int>(1);
  cudaEvent_t written = nullptr;
  cudaEventCreateWithFlags(&written, cudaEventDisableTiming);
  const auto right = [&](bool with_event) {
    return right_for(20, [&] {
      launch("write_value", write_value, {1, 1}, other, value, 0);
      cudaDeviceSynchronize();
      launch("write_value", write_value, {1, 1}, other, value, 7);
      if (with_event) {
        cudaEventRecord(written, other);
        cudaStreamWaitEvent(stream, written);
      }
      launch("copy_value", copy_value, {1, 1}, stream, out, value);
      const bool is = to_host(out, 1)[0] == 7;
      cudaDeviceSynchronize();
      return is;
    });
  };
  EXPECT_EQ(right(true), 20);
  EXPECT_GT(right(false), 0);
  EXPECT_LT(right(false), 20);
  cudaEventDestroy(written);
}

TEST_F(RuntimeTest, AWaitIsForWhatWasRecordedBeforeIt) {
  int* value = pinned<int>(1);
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event), cudaSuccess);  // never recorded: nothing to wait for
  const int overtaken = right_for(20, [&] {
    *value = 0;
    cudaEventRecord(event, other);
    cudaStreamWaitEvent(stream, event);
    launch("write_value", write_value, {1, 1}, other, value, 1);
    cudaEventRecord(event, other);  // not what the stream waits for
    cudaStreamSynchronize(stream);
    const bool before = *value == 0;
    cudaDeviceSynchronize();
    return before;
  });
  EXPECT_GT(overtaken, 0);
  cudaEventDestroy(event);
}

TEST_F(RuntimeTest, PinnedMemoryIsReadWhenTheCopyRunsAndPageableMemoryAtTheCall) {
  int* device = on_device<int>(1);
  const auto copied = [&](int* source) {
    *source = 1;
    cudaMemcpyAsync(device, source, sizeof(int), cudaMemcpyHostToDevice, stream);
    *source = 2;  // too early for pinned memory
    return to_host(device, 1)[0];
  };
  int pageable = 0;
  EXPECT_EQ(copied(pinned<int>(1)), 2);
  EXPECT_EQ(copied(&pageable), 1);
  alignas(4096) static int registered[1024];
  ASSERT_EQ(cudaHostRegister(registered, sizeof registered, cudaHostRegisterMapped), cudaSuccess);
  EXPECT_EQ(copied(registered + 5), 2);
  EXPECT_EQ(cudaHostUnregister(registered), cudaSuccess);
  EXPECT_EQ(copied(registered + 5), 1);
}

TEST_F(RuntimeTest, CopiesToPageableMemoryWaitAndThoseToPinnedMemoryDoNot) {
  int* device = on_device<int>(1);
  int* to = pinned<int>(1);
  *to = 0;
  launch("write_value", write_value, {1, 1}, stream, device, 3);
  cudaMemcpyAsync(to, device, sizeof(int), cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(*to, 0);
  EXPECT_EQ(host_waits(), 0);
  int pageable = 0;
  cudaMemcpyAsync(&pageable, device, sizeof(int), cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(pageable, 3);
  EXPECT_EQ(*to, 3);
  EXPECT_EQ(host_waits(), 1);
}

TEST_F(RuntimeTest, RowsAreCopiedAtTheirPitches) {
  std::vector<int> source(4 * 5);
  std::iota(source.begin(), source.end(), 0);
  int* device = on_device<int>(4 * 3);
  EXPECT_EQ(cudaMemcpy2DAsync(device, 3 * sizeof(int), source.data() + 1, 5 * sizeof(int), 3 * sizeof(int), 4,
                              cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  EXPECT_EQ(to_host(device, 12), (std::vector<int>{1, 2, 3, 6, 7, 8, 11, 12, 13, 16, 17, 18}));
  EXPECT_EQ(cudaMemcpy2DAsync(device, 2 * sizeof(int), source.data(), 5 * sizeof(int), 3 * sizeof(int), 4,
                              cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
}

TEST_F(RuntimeTest, ABatchOfCopiesIsMade) {
  const std::vector<int> source{1, 2, 3, 4};
  int* device = on_device<int>(4);
  void* to[] = {device + 2, device};
  const void* from[] = {source.data(), source.data() + 2};
  const std::size_t bytes[] = {2 * sizeof(int), 2 * sizeof(int)};
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  EXPECT_EQ(cudaMemcpyBatchAsync(to, from, bytes, 2, &attributes, &first, 1, stream), cudaSuccess);
  EXPECT_EQ(to_host(device, 4), (std::vector<int>{3, 4, 1, 2}));
}

TEST_F(RuntimeTest, AKernelIsNotLaunchedForTheFirstTimeWhileAnotherHoldsAStream) {
  holds_its_stream("write_value");
  launch("idle", idle<1>, {1, 1}, stream);
  launch("write_value", write_value, {1, 1}, other, pinned<int>(1), 1);
  EXPECT_NO_THROW(launch("idle", idle<1>, {1, 1}, stream));
  EXPECT_ANY_THROW(launch("idle", idle<2>, {1, 1}, stream));
  EXPECT_NE(kernel_failure().find("launched first behind a kernel that holds its stream"), std::string::npos);
}

TEST_F(RuntimeTest, EventsTellTimeOnceTheyAreDone) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin, stream);
  cudaEventRecord(end, stream);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GT(milliseconds, 0);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

TEST_F(RuntimeTest, AVeryLongQueueIsWorkedOff) {
  int* out = pinned<int>(1);
  *out = 0;
  for (int i = 0; i < 5000; ++i) launch("write_value", write_value, {1, 1}, stream, out, i);
  EXPECT_GT(*out, 0);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(*out, 4999);
}

// --- limits, faults and counts

TEST_F(RuntimeTest, LaunchesThatADeviceRefusesFail) {
  const auto launched = [&](dim3 blocks, dim3 threads, std::size_t shared = 0) {
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, idle<1>);
  };
  EXPECT_EQ(launched(1, 1024), cudaSuccess);
  EXPECT_EQ(launched(1, 1025), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(1, dim3(32, 33)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(0, 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(dim3(1, 65536), 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(1, 32, 48 << 10), cudaSuccess);
  EXPECT_EQ(launched(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(idle<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  EXPECT_EQ(allow((227 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(allow(64 << 10), cudaSuccess);
  EXPECT_EQ(launched(1, 32, 64 << 10), cudaSuccess);
  cudaLaunchConfig_t config{};
  config.stream = nullptr;
  EXPECT_EQ(cudaLaunchKernelEx(&config, idle<1>), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeTest, ChosenCallsFail) {
  fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  int* first = on_device<int>(1);
  EXPECT_NE(first, nullptr);
  void* second = nullptr;
  EXPECT_EQ(cudaMalloc(&second, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_NE(on_device<int>(1), nullptr);
  EXPECT_EQ(calls("cudaMalloc"), 3);
}

TEST_F(RuntimeTest, ALostDeviceStaysLost) {
  fail_call("cudaStreamSynchronize", 1, cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorECCUncorrectable);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorECCUncorrectable);
}

TEST_F(RuntimeTest, ALostDeviceTakesBackWhatItGave) {
  const std::uint64_t before = device_bytes();
  void* queued = nullptr;
  void* kept = nullptr;
  cudaMallocAsync(&queued, 100, stream);
  cudaMallocAsync(&kept, 100, stream);
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  cudaFreeAsync(queued, stream);
  fail_call("cudaStreamSynchronize", 1, cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaFreeAsync(kept, stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorLaunchFailure);
  EXPECT_EQ(device_bytes(), before);
}

TEST_F(RuntimeTest, AMachineWithoutADeviceSaysSo) {
  device().count = 0;
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
}

TEST_F(RuntimeTest, LaunchesAndWaitsAreCounted) {
  launch("idle", idle<1>, {1, 1}, stream);
  launch("idle", idle<1>, {1, 1}, other);
  launch("idle", idle<2>, {1, 1}, other);
  EXPECT_EQ(launches(), 3);
  EXPECT_EQ(launches("idle"), 3);
  EXPECT_EQ(launches("idle<1>"), 2);
  EXPECT_EQ(launches("no such kernel"), 0);
  EXPECT_EQ(host_waits(), 0);
  cudaStreamSynchronize(stream);
  cudaStreamSynchronize(stream);  // finds nothing to wait for
  EXPECT_EQ(host_waits(), 1);
  cudaDeviceSynchronize();
  EXPECT_LE(host_waits(), 2);  // what the first wait let run may have been all
}

}  // namespace
}  // namespace hayloft::simt
