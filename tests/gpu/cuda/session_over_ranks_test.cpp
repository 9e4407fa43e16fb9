#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"

// Sessions of ranks that hold a context together, each with a CUDA backend of its own, against one machine on the CPU.
namespace hayloft::testing {
namespace {

using runtime::cluster::Communicator;

class SessionsOverRanksOnCuda : public ::testing::Test {
 protected:
  struct Answer {
    std::vector<std::vector<float>> logits;  // of each step
    std::int64_t tokens = 0;
  };

  void SetUp() override {
    if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.chunk_tokens = 24;
  }

  Answer answer(gpu::Backend& backend, Communicator* ranks, const std::string& by, std::span<const std::int32_t> prompt,
                std::span<const std::int32_t> forced) const {
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    memory.listener = backend.pinning();
    const offload::Topology topology;
    offload::Arena arena(topology, memory);
    const runtime::Model model(golden_models() / "llama", backend);
    runtime::SessionOptions own = options;
    if (ranks != nullptr) own.attend_by(runtime::cluster::rank_attender(*ranks));
    runtime::Session context(model, arena, own);
    context.append(prompt);
    runtime::Session session = context.fork();
    session.set_method(runtime::make_method(runtime::parse_method(by, {}), model.config().head_dim));
    Answer got;
    for (const std::int32_t token : forced) got.logits.push_back(session.step(token));
    got.tokens = session.tokens();
    return got;
  }

  std::vector<Answer> over(int count, const std::string& by, std::span<const std::int32_t> prompt,
                           std::span<const std::int32_t> forced) const {
    std::vector<Answer> all(static_cast<std::size_t>(count));
    runtime::cluster::run_local_ranks(count, [&](Communicator& ranks) {
      const std::unique_ptr<gpu::Backend> backend =
          make_cuda({.memory_bytes = std::uint64_t{1} << 30});  // they share the device
      all[static_cast<std::size_t>(ranks.rank())] = answer(*backend, &ranks, by, prompt, forced);
    });
    return all;
  }

  void expect_as_alone(const std::string& by, int count, int length = 40) const {
    SCOPED_TRACE(fmt::format("{} over {} ranks", by, count));
    constexpr std::size_t steps = 1;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length) + steps);
    std::mt19937 random(11);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 128);
    const auto prompt = std::span(tokens).first(tokens.size() - steps), forced = std::span(tokens).last(steps);
    const std::unique_ptr<gpu::Backend> cpu = gpu::make_cpu_backend(threads());
    const Answer alone = answer(*cpu, nullptr, by, prompt, forced);
    const std::vector<Answer> all = over(count, by, prompt, forced);
    for (const Answer& rank : all) {
      EXPECT_EQ(rank.tokens, alone.tokens);
      EXPECT_EQ(rank.logits, all.front().logits) << "ranks part";
      for (std::size_t step = 0; step < alone.logits.size(); ++step) {
        const auto largest = std::ranges::max(alone.logits[step], {}, [](float x) { return std::fabs(x); });
        // A prompt's weights are rounded to f16, as tests/gpu/cuda/model_test.cpp has it.
        EXPECT_TRUE(near(rank.logits[step], alone.logits[step], 0x1p-6 * std::fabs(largest)));
      }
    }
  }

  runtime::SessionOptions options;
};

TEST_F(SessionsOverRanksOnCuda, ReadAndAnswerAsOneMachine) {
  expect_as_alone("dense", 3);
  expect_as_alone("topk:k=30", 2);
  expect_as_alone("sparq:r=8:k=30", 2);
}

TEST_F(SessionsOverRanksOnCuda, ReadByLayersAsByChunks) {
  options.prefill.order = runtime::PrefillOptions::Order::layer;
  expect_as_alone("window:k=20", 2);
}

TEST_F(SessionsOverRanksOnCuda, KeepIntegerRows) {
  options.cache.block_tokens = 64;
  options.chunk_tokens = 80;
  options.cache.rows = offload::RowFormat::int8;
  options.cache.columns = offload::ColumnFormat::int8;
  expect_as_alone("dense", 2, 75);
}

}  // namespace
}  // namespace hayloft::testing
