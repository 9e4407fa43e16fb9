#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/decode/session.h"
#include "tests/support/golden_models.h"

// A small model on the CPU, and sessions of it in small blocks.
namespace hayloft::runtime {

inline std::vector<std::int32_t> random_tokens(int count, int vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

inline MethodOptions method(std::string_view text) {
  return parse_method(text, {});
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.chunk_tokens = 24;
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{goldens / "llama", *backend};
  SessionOptions options;
};

}  // namespace hayloft::runtime
