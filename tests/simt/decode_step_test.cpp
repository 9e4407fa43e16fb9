#include <filesystem>
#include <random>

#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Tests what a decode step asks of the host.
namespace hayloft::simt {
namespace {

using runtime::Model;
using runtime::Session;

class DecodeStepTest : public ::testing::Test {
 protected:
  static offload::ArenaOptions memory_of(gpu::Backend& backend) {
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    memory.listener = backend.pinning();
    return memory;
  }

  // Counts the waits of a step behind 66 tokens, which fills no block.
  std::int64_t waits_of_a_step(const char* model_name, const char* method_text, bool drawn = false) {
    const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
    offload::Arena arena(topology, memory_of(*cuda));
    const Model model(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models" / model_name, *cuda);
    runtime::SessionOptions options;
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    Session session(model, arena, options);
    std::vector<std::int32_t> tokens(65);
    std::mt19937 random(3);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 100);
    session.append(tokens);
    const auto method = runtime::make_method(runtime::parse_method(method_text, {}), model.config().head_dim);
    session.set_method(method).step(1);  // what is set up once
    layers = model.config().global_layers();
    runtime::Sampler sampler({.temperature = 0});
    if (drawn) session.next(1, sampler);
    const std::int64_t before = host_waits();
    if (drawn) {
      session.next(2, sampler);
    } else {
      session.step(2);
    }
    return host_waits() - before;
  }

  const offload::Topology topology;
  int layers = 0;
};

constexpr std::int64_t at_the_end = 1;  // for the logits, and what says whether all numbers are finite

TEST_F(DecodeStepTest, SparqDenseAndWindowWaitAtItsEndOnly) {
  for (const char* text : {"sparq:r=4:k=32", "dense", "window:k=20"}) {
    EXPECT_EQ(waits_of_a_step("llama", text), at_the_end) << text;
  }
}

TEST_F(DecodeStepTest, TheNextTokenTakesOneWaitForItsCandidatesAndTheFlag) {
  EXPECT_EQ(waits_of_a_step("llama", "sparq:r=4:k=32", true), at_the_end);
}

TEST_F(DecodeStepTest, SlidingWindowLayersNeverLeaveTheDevice) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
  offload::ArenaOptions memory;
  memory.budget_bytes = std::uint64_t{64} << 20;
  memory.listener = cuda->pinning();
  offload::Arena arena(topology, memory);
  const Model model(testing::golden_models() / "mistral-sliding", *cuda);  // all of its layers, by 24 tokens
  ASSERT_EQ(model.config().global_layers(), 0);
  runtime::SessionOptions options;
  options.cache.block_tokens = 16;
  options.cache.window = 8;
  options.chunk_tokens = 24;
  Session session(model, arena, options);
  const std::uint64_t flag = sizeof(std::int32_t);
  const std::uint64_t logits = static_cast<std::uint64_t>(model.config().vocab_size) * sizeof(float);

  std::uint64_t before = copied_to_host();
  session.append(std::vector<std::int32_t>(3 * 24, 5));
  EXPECT_EQ(copied_to_host() - before, 3 * flag) << "one for each chunk";
  for (const char* text : {"dense", "sparq:r=4:k=32", "topk:k=32"}) {
    const auto method = runtime::make_method(runtime::parse_method(text, {}), model.config().head_dim);
    before = copied_to_host();
    session.set_method(method);
    for (int i = 0; i < 6; ++i) session.step(i);
    EXPECT_EQ(copied_to_host() - before, 6 * (logits + flag)) << text;
  }
  EXPECT_EQ(session.cache().store().bytes(), 0u);
  EXPECT_EQ(session.cache().spilled_bytes(), 0u);
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_EQ(session.counters().total(runtime::Place::link), 0u);
  EXPECT_EQ(session.counters().total(runtime::Place::near), 0u);
}

TEST_F(DecodeStepTest, ExactSelectionBringsTheQueriesOfEachLayerToTheHost) {
  const std::int64_t waits = waits_of_a_step("llama", "topk:k=32");
  EXPECT_EQ(waits, at_the_end + layers);
}

struct GraphsOf {
  const char* model;
  const char* method;
  int block_tokens = 16;
  int prompt = 40;
  std::uint64_t cached_bytes = 0;  // columns and rows; 1: columns are fetched ahead
  gpu::Link link = gpu::Link::sm;
};

std::ostream& operator<<(std::ostream& out, const GraphsOf& of) {
  return out << of.model << ", " << of.method << ", " << of.cached_bytes;
}

// A block leaves the tail meanwhile, whose tables and grids are others then.
TEST_F(DecodeStepTest, GraphsGiveTheBitsThatKernelsByThemselvesGive) {
  // Returns the logits of some steps.
  const auto steps_of = [&](const GraphsOf& of, bool graphs) {
    gpu::CudaOptions device;
    device.step_graphs = graphs;
    device.column_cache_bytes = device.row_cache_bytes = of.cached_bytes;
    device.link.f16 = of.link;
    device.short_list_keys = of.prompt > 40 ? 0 : device.short_list_keys;
    const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda(device);
    offload::Arena arena(topology, memory_of(*cuda));
    const Model model(testing::golden_models() / of.model, *cuda);
    runtime::SessionOptions options;
    options.cache.block_tokens = of.block_tokens;
    options.cache.window = 8;
    Session session(model, arena, options);
    session.append(std::vector<std::int32_t>(static_cast<std::size_t>(of.prompt), 7));
    session.set_method(runtime::make_method(runtime::parse_method(of.method, {}), model.config().head_dim));
    const std::int64_t before = calls("cudaGraphLaunch");
    const std::uint64_t spilled = session.cache().spilled_bytes();
    std::vector<std::vector<float>> logits;
    for (std::int32_t token = 0; token < 20; ++token) logits.push_back(session.step(token));
    EXPECT_EQ(calls("cudaGraphLaunch") > before, graphs);
    EXPECT_TRUE(session.cache().spilled_bytes() > spilled || model.config().global_layers() == 0) << of;
    return logits;
  };
  std::vector<GraphsOf> all;
  for (const char* method : {"dense", "sparq:r=4:k=32", "window:k=20"}) {
    for (const char* model : {"llama", "qwen2-sliding", "qwen3_5", "qwen3_moe"}) all.push_back({model, method});
  }
  constexpr int prompt = 3 * 256 - 4;  // with the window a block more than has been stored, soon
  for (const std::uint64_t cached : {std::uint64_t{16} << 20, std::uint64_t{1}}) {
    for (const char* method : {"sparq:r=4:k=32", "sparq:r=4:k=2"})
      all.push_back({"llama", method, 256, prompt, cached});
  }
  all.push_back({"llama", "sparq:r=4:k=32", 256, prompt, 0, gpu::Link::copy});
  for (const GraphsOf& of : all) EXPECT_EQ(steps_of(of, true), steps_of(of, false)) << of;
}

TEST_F(DecodeStepTest, StepsOfSeveralSessionsTogetherAreThoseOfEachAlone) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
  offload::Arena arena(topology, memory_of(*cuda));
  for (const char* name : {"llama", "qwen2-sliding"}) {
    const Model model(testing::golden_models() / name, *cuda);
    runtime::SessionOptions options;
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    Session book(model, arena, options);
    book.append(std::vector<std::int32_t>(40, 7));
    std::vector<Session> together, alone;
    for (auto* sessions : {&together, &alone}) {
      for (const char* text : {"dense", "sparq:r=4:k=20", "dense"}) {
        sessions->push_back(book.fork());
        sessions->back().set_method(runtime::make_method(runtime::parse_method(text, {}), model.config().head_dim));
      }
    }
    runtime::Sampler greedy({.temperature = 0}), greedy_alone({.temperature = 0});
    for (std::int32_t i = 0; i < 12; ++i) {
      std::vector<Session::Step> steps(3);
      for (std::size_t s = 0; s < 3; ++s) {
        steps[s].session = &together[s];
        steps[s].token = 10 * i + static_cast<std::int32_t>(s);
      }
      steps[1].sampler = &greedy;
      const bool bad = i % 4 == 3;
      if (bad) steps[2].token = model.config().vocab_size;
      Session::step_together(steps);
      ASSERT_EQ(steps[0].logits, alone[0].step(10 * i)) << name << ", step " << i;
      ASSERT_EQ(steps[1].next, alone[1].next(10 * i + 1, greedy_alone)) << name << ", step " << i;
      ASSERT_EQ(steps[2].failure != nullptr, bad);
      if (bad) continue;
      ASSERT_EQ(steps[2].logits, alone[2].step(10 * i + 2)) << name << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace hayloft::simt
