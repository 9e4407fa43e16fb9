#include "tests/gpu/cuda/backends.h"

// The operations that move memory, and what every other test takes for granted.
namespace hayloft::testing {
namespace {

using TransferTest = CudaTest;

TEST_F(TransferTest, WhatGoesToTheDeviceComesBack) {
  const std::vector<float> values = normal(1001, 5);
  const gpu::Buffer buffer = upload(*cuda, values);
  EXPECT_EQ(download<float>(*cuda, buffer), values);
}

TEST_F(TransferTest, TheTailOfASharedCacheIsOnTheDevice) {
  CacheShape shape;
  shape.kv_heads = 2;
  shape.stored = 150;  // with blocks of 64: the last one is ragged
  shape.tail = 5;
  const SharedCache cache(*cuda, shape);
  EXPECT_EQ(cache.device_tail(*cuda), cache.values().tail_rows());
}

}  // namespace
}  // namespace hayloft::testing
