#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "offload/error.h"
#include "tests/gpu/cpu/ops_fixture.h"

// Memory of the CPU backend: buffers, weights that share pieces, and what cannot be had.
namespace hayloft {
namespace {

using testing::CpuOps;
using testing::normal;

using CpuMemory = CpuOps;

TEST_F(CpuMemory, BuffersOwnTheirMemoryAndCopiesMayOverlap) {
  gpu::Buffer buffer = backend->allocate(400, {});
  ASSERT_TRUE(buffer);
  const auto values = normal(100, 16);
  backend->to_device(buffer.as<float>(), values.data(), 400, {});
  backend->copy(buffer.as<float>() + 10, buffer.as<float>(), 80 * 4, {});
  std::vector<float> back(100);
  backend->to_host(back.data(), buffer.as<float>(), 400, {});
  EXPECT_TRUE(std::equal(back.begin() + 10, back.begin() + 90, values.begin()));
  gpu::Buffer taken = std::move(buffer);
  EXPECT_FALSE(buffer);
  EXPECT_EQ(taken.bytes(), 400u);
  EXPECT_TRUE(backend->allocate(0, {}));
}

TEST_F(CpuMemory, AnImpossibleAllocationIsAnErrorThatSaysHowMuch) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' allocator ends the program instead";
#endif
  try {
    backend->allocate(std::uint64_t{1} << 60, {});
    FAIL() << "2^60 bytes were allocated";
  } catch (const NoMemory& error) {
    EXPECT_NE(std::string(error.what()).find("1152921504606846976"), std::string::npos);
  }
}

TEST_F(CpuMemory, SmallWeightsShareMemoryThatLastsAsLongAsOneOfThem) {
  constexpr std::uint64_t sizes[] = {1000, 0, std::uint64_t{3} << 20, std::uint64_t{1} << 22, (1 << 20) + 1};
  std::vector<gpu::Buffer> weights;
  const auto fill = [&](std::size_t i) {
    weights[i] = backend->allocate_weights(sizes[i % 5], {});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights[i].as<char>()) % 64, 0u);
    std::memset(weights[i].as<char>(), static_cast<int>(i), weights[i].bytes());
  };
  for (std::size_t i = 0; i < 20; ++i) fill((weights.emplace_back(), i));
  EXPECT_EQ(weights[1].as<char>(), weights[0].as<char>() + 1024);
  for (std::size_t i = 0; i < 20; i += 3) weights[i] = {};
  for (std::size_t i = 0; i < 20; i += 6) fill(i);
  for (std::size_t i = 0; i < 20; ++i) {
    const char* const bytes = weights[i].as<char>();
    EXPECT_TRUE(std::all_of(bytes, bytes + weights[i].bytes(), [&](char each) { return each == static_cast<char>(i); }))
        << i;
  }
}

}  // namespace
}  // namespace hayloft
