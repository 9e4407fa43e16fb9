#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/simt/device/control.h"

namespace hayloft::simt {

__global__ inline void write_value(int* out, int value) {
  *out = value;
}

// Two streams on a runtime that begins anew, and memory that is freed at the end.
class StreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    reset();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    reset();
    for (void* data : device_) cudaFree(data);
    for (void* data : pinned_) cudaFreeHost(data);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
  }

  template <class T>
  T* on_device(std::size_t n) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, n * sizeof(T)), cudaSuccess);
    device_.push_back(data);
    return static_cast<T*>(data);
  }
  template <class T>
  T* pinned(std::size_t n) {
    void* data = nullptr;
    EXPECT_EQ(cudaMallocHost(&data, n * sizeof(T)), cudaSuccess);
    pinned_.push_back(data);
    return static_cast<T*>(data);
  }
  template <class T>
  std::vector<T> to_host(const T* data, std::size_t n) {
    std::vector<T> values(n);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost, stream), cudaSuccess);
    return values;
  }

  // Returns those of the given number of seeds for which `right` holds.
  template <class Right>
  int right_for(int seeds, Right&& right) {
    int count = 0;
    for (int s = 1; s <= seeds; ++s) {
      reset(static_cast<std::uint64_t>(s));
      count += right() ? 1 : 0;
    }
    return count;
  }

  cudaStream_t stream = nullptr;
  cudaStream_t other = nullptr;

 private:
  std::vector<void*> device_;
  std::vector<void*> pinned_;
};

}  // namespace hayloft::simt
