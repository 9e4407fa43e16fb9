#include "runtime/decode/expert_slots.h"

#include <cstring>
#include <random>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"

// Experts in host memory, multiplied by the device.
namespace hayloft::testing {
namespace {

using runtime::Expert;
using runtime::ExpertSlots;
using runtime::ExpertTokens;

constexpr int hidden = 32, inner = 48, experts = 20, layers = 2;

class ExpertSlotsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    input_ = upload(*cuda, normal(inner, 1));
    std::mt19937 random(3);
    for (auto* weights : {&hosted, &there}) weights->resize(layers);
    for (int layer = 0; layer < layers; ++layer) {
      for (int i = 0; i < experts; ++i) {
        Expert& host = hosted[static_cast<std::size_t>(layer)].experts.each.emplace_back();
        Expert& device = there[static_cast<std::size_t>(layer)].experts.each.emplace_back();
        for (const auto& [matrix, same, rows, cols] :
             {std::tuple(&host.gate, &device.gate, inner, hidden), std::tuple(&host.up, &device.up, inner, hidden),
              std::tuple(&host.down, &device.down, hidden, inner)}) {
          const std::vector<float> values = normal(rows * cols, random());
          *matrix = *same = {nullptr, gpu::DType::f32, rows, cols};
          matrix->data = on_host(values);
          same->data = on_device(values);
        }
        const std::vector<float> bias = normal(inner, random());
        host.gate_bias = on_host(bias);
        device.gate_bias = on_device(bias);
      }
    }
  }
  float* on_host(const std::vector<float>& values) {
    memory_.push_back(cuda->host_memory(values.size() * sizeof(float)));
    std::memcpy(memory_.back().get(), values.data(), values.size() * sizeof(float));
    return reinterpret_cast<float*>(memory_.back().get());
  }
  float* on_device(const std::vector<float>& values) {
    buffers_.push_back(upload(*cuda, values));
    return buffers_.back().as<float>();
  }

  static std::vector<ExpertTokens> chosen(std::vector<int> which) {
    std::sort(which.begin(), which.end());
    std::vector<ExpertTokens> tokens;
    for (const int expert : which) tokens.push_back({expert, {0}, {1}});
    return tokens;
  }
  // Queues what each of some experts makes of one input, by gate, up and down, [some][made], into y.
  static constexpr int made = 2 * inner + hidden;
  void multiply(std::span<const Expert* const> weights, float* y) {
    std::vector<gpu::MatrixProduct> products;
    for (const Expert* expert : weights) {
      products.push_back({input_.as<float>(), 1, &expert->gate, y, expert->gate_bias});
      products.push_back({input_.as<float>(), 1, &expert->up, y + inner});
      products.push_back({input_.as<float>(), 1, &expert->down, y + 2 * inner});
      y += made;
    }
    cuda->multiply_each(products, cuda->stream());
  }
  // The host waits when all of so many passes is queued.
  std::vector<float> by_slots(ExpertSlots& slots, int layer, const std::vector<ExpertTokens>& which, int passes = 1) {
    const auto floats = static_cast<std::uint64_t>(passes) * which.size() * made;
    const gpu::Buffer y = cuda->allocate(floats * sizeof(float), cuda->stream());
    auto* next = y.as<float>();
    for (int pass = 0; pass < passes; ++pass) {
      slots.each_group(layer, which, [&](auto some, auto weights) {
        multiply(weights, next);
        next += made * some.size();
      });
    }
    return download<float>(*cuda, y.as<float>(), static_cast<std::int64_t>(floats));
  }
  std::vector<float> by_device(int layer, const std::vector<ExpertTokens>& which) {
    std::vector<const Expert*> weights;
    for (const ExpertTokens& each : which) {
      weights.push_back(&there[static_cast<std::size_t>(layer)].experts.each[static_cast<std::size_t>(each.expert)]);
    }
    const gpu::Buffer y = cuda->allocate(made * which.size() * sizeof(float), cuda->stream());
    multiply(weights, y.as<float>());
    return download<float>(*cuda, y.as<float>(), static_cast<std::int64_t>(made * which.size()));
  }
  static constexpr std::uint64_t expert_bytes = (3 * inner * hidden + inner) * sizeof(float);

  std::vector<runtime::LayerWeights> hosted, there;

 private:
  std::vector<std::shared_ptr<std::byte>> memory_;
  std::vector<gpu::Buffer> buffers_;
  gpu::Buffer input_;
};

TEST_F(ExpertSlotsTest, GiveTheSameBitsHoweverManyStay) {
  for (const auto& [kept, ring] : {std::pair(0, 8), {1, 8}, {5, experts + 8}, {experts, 8}}) {
    SCOPED_TRACE(kept);
    ExpertSlots slots(*cuda, hosted, {runtime::ExpertPlace::link, kept, ring});
    std::mt19937 random(static_cast<unsigned>(kept));
    std::uint64_t asked = 0;
    for (int pass = 0; pass < 30; ++pass) {
      std::vector<int> which(experts);
      for (int i = 0; i < experts; ++i) which[static_cast<std::size_t>(i)] = i;
      std::shuffle(which.begin(), which.end(), random);
      which.resize(pass % 7 == 3 ? experts : 1 + random() % 6);  // chunks of prompts go through all of them
      const int layer = pass % layers;
      const std::vector<ExpertTokens> tokens = chosen(which);
      ASSERT_EQ(by_slots(slots, layer, tokens), by_device(layer, tokens)) << pass;
      asked += which.size();
    }
    const runtime::ExpertTraffic traffic = slots.traffic();
    EXPECT_EQ(traffic.asked, asked);
    EXPECT_EQ(traffic.link_bytes, (asked - traffic.held) * expert_bytes);
    if (kept == experts) {
      EXPECT_EQ(traffic.link_bytes, std::uint64_t{layers} * experts * expert_bytes);
    }
  }
}

TEST_F(ExpertSlotsTest, APassWaitsForThoseBeforeIt) {
  ExpertSlots slots(*cuda, hosted, {runtime::ExpertPlace::link, 2, 8});
  const std::vector<ExpertTokens> all = chosen({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  const std::vector<float> once = by_device(1, all), passes = by_slots(slots, 1, all, 6);
  for (std::size_t i = 0; i < passes.size(); ++i) ASSERT_EQ(passes[i], once[i % once.size()]) << i;
}

TEST_F(ExpertSlotsTest, WhatIsAskedForMostStays) {
  ExpertSlots slots(*cuda, hosted, {runtime::ExpertPlace::link, 3, 8});
  const auto held_of = [&](std::vector<int> which) {
    const std::uint64_t before = slots.traffic().held;
    by_slots(slots, 0, chosen(std::move(which)));
    return slots.traffic().held - before;
  };
  for (int pass = 0; pass < 5; ++pass) held_of({4, 7});
  for (int other = 8; other < experts; ++other) held_of({4, 7, other});
  EXPECT_EQ(held_of({4, 7}), 2U);
  held_of(std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});  // a prompt's chunk
  EXPECT_EQ(held_of({4, 7}), 2U);
  for (int pass = 0; pass < 200; ++pass) held_of({1, 2, 3});  // a text of another kind
  EXPECT_EQ(held_of({1, 2, 3}), 3U);
}

// As chunks of a prompt go through a layer one after another.
TEST_F(ExpertSlotsTest, ARingWithRoomForALayerBringsItOnce) {
  std::vector<int> which(experts);
  for (int i = 0; i < experts; ++i) which[static_cast<std::size_t>(i)] = i;
  const std::vector<ExpertTokens> all = chosen(which);
  ExpertSlots slots(*cuda, hosted, {runtime::ExpertPlace::near, 0, experts + 8, true});
  for (int layer = 0; layer < layers; ++layer) {
    const std::vector<float> once = by_device(layer, all), passes = by_slots(slots, layer, all, 3);
    for (std::size_t i = 0; i < passes.size(); ++i) ASSERT_EQ(passes[i], once[i % once.size()]) << i;
    EXPECT_EQ(slots.traffic().link_bytes, static_cast<std::uint64_t>(layer + 1) * experts * expert_bytes);
  }
}

// A device without room for a mixture, of which the CPU multiplies what single tokens ask for and the device what
// chunks of prompts do.
TEST_F(CudaTest, ADeviceWithoutRoomReadsPromptsOverTheLink) {
  const std::filesystem::path path = golden_models() / "qwen3_moe";
  const gpu::DeviceMemory memory = cuda->memory();
  const runtime::WeightSizes sizes = runtime::weight_sizes(*runtime::Checkpoint::open(path));
  const std::uint64_t weights = sizes.bytes - sizes.host_bytes;  // of which an eighth would have to be left
  gpu::Buffer others = cuda->allocate(memory.budget_bytes - memory.used_bytes - weights * 10 / 9, cuda->stream());
  const runtime::Model model(path, *cuda), whole(path, *cpu);
  others = {};
  EXPECT_EQ(model.expert_placement().place, runtime::ExpertPlace::near);
  EXPECT_TRUE(model.expert_placement().prompts_over_link);

  const offload::Topology topology;
  runtime::SessionOptions options;
  options.chunk_tokens = 64;
  offload::Arena arena(topology, {.budget_bytes = std::uint64_t{64} << 20, .listener = cuda->pinning()});
  offload::Arena near_arena(topology, {.budget_bytes = std::uint64_t{64} << 20});
  runtime::Session session(model, arena, options), expected(whole, near_arena, options);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(7 * i % 128);
  session.append(tokens);
  expected.append(tokens);
  const runtime::ExpertTraffic prompt = model.expert_traffic();
  EXPECT_GT(prompt.link_bytes, 0U);
  const std::vector<float> logits = expected.step(7);
  float largest = 0;
  for (const float value : logits) largest = std::max(largest, std::fabs(value));
  EXPECT_TRUE(near(session.step(7), logits, 0x1p-5 * largest));  // of ModelOnCuda.ReadsAPromptAsTheCpuDoes
  EXPECT_EQ(model.expert_traffic().asked, prompt.asked);
}

// Experts that are placed anew before anything is read give the bits of those that were there from the start.
TEST_F(CudaTest, ExpertsPlacedAnewGiveTheSameBits) {
  using runtime::ExpertPlace;
  const std::filesystem::path path = golden_models() / "qwen3_moe";
  const offload::Topology topology;
  offload::Arena arena(topology, {.budget_bytes = std::uint64_t{64} << 20, .listener = cuda->pinning()});
  const auto step = [&](const runtime::Model& model) {
    runtime::Session session(model, arena, {});
    for (int i = 0; i < 20; ++i) session.step(7 * i % 128);
    return session.step(3);
  };
  runtime::Model model(path, *cuda, {}, {}, ExpertPlace::link);
  const runtime::ExpertPlacement all = model.expert_placement();
  const std::uint64_t before = cuda->memory().used_bytes;
  for (const runtime::ExpertPlacement& placement :
       {runtime::ExpertPlacement{ExpertPlace::near, 0, all.ring, true}, {ExpertPlace::link, 1, all.ring}}) {
    const runtime::Model fresh(path, *cuda, {}, {}, placement.place);
    model.place_experts(placement);
    EXPECT_EQ(model.expert_placement(), placement);
    EXPECT_EQ(step(model), step(fresh)) << name(placement.place);
  }
  EXPECT_LE(cuda->memory().used_bytes, before);  // fewer are kept
  model.place_experts({});                       // they are in the machine's memory, and stay there
  EXPECT_EQ(model.expert_placement().place, ExpertPlace::link);
}

}  // namespace
}  // namespace hayloft::testing
