#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>

#include "offload/error.h"
#include "offload/host/arena.h"

namespace hayloft::offload {

inline constexpr std::uint64_t KiB = std::uint64_t{1} << 10;
inline constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

class ArenaTest : public ::testing::Test {
 protected:
  Topology topology_;

  ArenaOptions options(std::uint64_t budget, std::uint64_t chunk) const {
    ArenaOptions options;
    options.budget_bytes = budget;
    options.chunk_bytes = chunk;
    return options;
  }
};

// Keeps the chunks it was told of; refuses them while `refusing`.
class Recorder : public ChunkListener {
 public:
  void committed(std::byte* data, std::uint64_t bytes) override {
    if (refusing) fail("cannot pin {} bytes", bytes);
    EXPECT_TRUE(chunks.emplace(data, bytes).second);
  }
  void releasing(std::byte* data, std::uint64_t bytes) noexcept override {
    const auto chunk = chunks.find(data);
    ASSERT_NE(chunk, chunks.end());
    EXPECT_EQ(chunk->second, bytes);
    static_cast<volatile std::byte*>(data)[0];  // still there
    chunks.erase(chunk);
  }

  bool holds(const Extent& extent) const {
    auto chunk = chunks.upper_bound(extent.data());
    if (chunk == chunks.begin()) return false;
    --chunk;
    return extent.data() + extent.bytes() <= chunk->first + chunk->second;
  }

  std::map<std::byte*, std::uint64_t> chunks;
  bool refusing = false;
};

inline bool all_zero(const Extent& extent) {
  return std::all_of(extent.data(), extent.data() + extent.bytes(), [](std::byte b) { return b == std::byte{0}; });
}

inline void scribble(const Extent& extent) {
  std::memset(extent.data(), 0x5a, extent.bytes());
}

}  // namespace hayloft::offload
