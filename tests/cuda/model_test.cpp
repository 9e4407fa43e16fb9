#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "runtime/session.h"
#include "tests/cuda/backends.h"

// Whole models, read and continued on both backends.
namespace hayloft::testing {
namespace {

using runtime::Model;
using runtime::Session;

constexpr int vocabulary = 128;

std::vector<std::int32_t> random_tokens(int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % vocabulary);
  return tokens;
}

class ModelOnCuda : public CudaTest, public ::testing::WithParamInterface<const char*> {
 protected:
  struct Side {
    Side(gpu::Backend& backend, const offload::ArenaOptions& memory, const runtime::SessionOptions& options)
        : arena(topology, memory),
          model(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models" / GetParam(), backend),
          session(model, arena, options) {}

    offload::Topology topology;
    offload::Arena arena;
    Model model;
    Session session;
  };

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    runtime::SessionOptions options;
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.cache.columns = columns;
    options.chunk_tokens = 24;
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    on_cpu.emplace(*cpu, memory, options);
    memory.listener = cuda->pinning();
    on_cuda.emplace(*cuda, memory, options);
  }

  // What both say after this token.
  void expect_same_step(std::int32_t token, const char* text) {
    SCOPED_TRACE(text);
    const auto method = runtime::make_method(runtime::parse_method(text, {}), on_cpu->model.config().head_dim);
    const std::vector<float> expected = on_cpu->session.step(token, *method);
    // The backends add in another order, after which a key or a value in so many rounds to its neighbour in f16, half
    // an ulp of 2^-11 from where it was: through a few layers, and a softmax or two, a few times that.
    EXPECT_TRUE(near(on_cuda->session.step(token, *method), expected, 0x1p-8 * largest(expected)));
  }

  static double largest(const std::vector<float>& values) {
    float most = 0;
    for (const float value : values) most = std::max(most, std::fabs(value));
    return most;
  }

  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  std::optional<Side> on_cpu;
  std::optional<Side> on_cuda;
};

TEST_P(ModelOnCuda, ReadsAndContinuesAsTheCpuDoes) {
  const auto tokens = random_tokens(120, 5);
  on_cpu->session.append(tokens);
  on_cuda->session.append(tokens);
  // Twice past a block's end, so that the decode steps spill.
  std::int32_t next = 1;
  for (int round = 0; round < 4; ++round) {
    for (const char* text : {"dense", "sparq:r=4:k=40", "topk:k=40", "window:k=30", "sparq:r=8:k=100%", "topk:k=100%"}) {
      expect_same_step(next++ % vocabulary, text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, ModelOnCuda,
                         ::testing::Values("llama", "llama-llama3", "mistral-sliding", "qwen2", "qwen3", "smollm3"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace hayloft::testing
