#include <filesystem>
#include <optional>
#include <random>

#include "runtime/decode/hidden_states.h"
#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Tests what reading a prompt layer by layer asks of the host.
namespace hayloft::simt {
namespace {

using runtime::Model;
using runtime::OnDevice;

constexpr int chunk = 8, block = 16, window = 8;

class PrefillWaits : public ::testing::Test {
 protected:
  struct Read {
    std::int64_t waits = 0;
    std::vector<float> logits;  // of one more token
  };

  static offload::ArenaOptions pinned_by(gpu::Backend& cuda) {
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    memory.listener = cuda.pinning();
    return memory;
  }

  // `tokens` read by an empty cache.
  Read read(int tokens, const OnDevice& on_device, gpu::KvHost kv_host = gpu::KvHost::automatic) {
    const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda({.kv_host = kv_host});
    offload::Arena arena(topology, pinned_by(*cuda));
    const Model model(testing::golden_models() / "llama", *cuda);
    layers = model.config().layers;
    runtime::CacheOptions options;
    options.block_tokens = block;
    options.window = window;
    runtime::Cache cache(*cuda, arena, model.config(), options);
    runtime::Workspace workspace;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    std::mt19937 random(3);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % 100);
    const std::int64_t before = host_waits();
    runtime::PrefillAttention exact;
    model.forward_by_layer(cache, workspace, ids, chunk, exact, on_device);
    Read done;
    done.waits = host_waits() - before;
    done.logits.resize(static_cast<std::size_t>(model.config().vocab_size));
    model.forward(cache, workspace, std::vector<std::int32_t>{7}, runtime::Want::last, exact, [&](const float* logits) {
      cuda->to_host(done.logits.data(), logits, done.logits.size() * sizeof(float), cuda->stream());
    });
    return done;
  }

  const offload::Topology topology;
  int layers = 0;
};

TEST_F(PrefillWaits, DoNotGrowWithTheNumberOfChunksTimesLayers) {
  // The last layer, which stops at K and V, has nothing to stay for: its blocks leave as they fill, and are waited for.
  const auto blocks = [](int tokens) { return (tokens - window) / block; };
  const auto waits = [&](int tokens, const OnDevice& on_device) {
    return read(tokens, on_device).waits - blocks(tokens);
  };
  // Besides, a flag per layer, and once the blocks of each that stayed on the device.
  const std::int64_t resident = waits(3 * chunk, {.layer = true, .hidden = true});
  EXPECT_LE(resident, 2 * layers);
  EXPECT_EQ(waits(9 * chunk, {.layer = true, .hidden = true}), resident);
  // Two more for the copies under way at the end, and one to give up the pinned memory that they used.
  const std::int64_t passing = waits(3 * chunk, {.layer = true, .hidden = false});
  EXPECT_LE(passing, 2 * layers + 3);
  EXPECT_EQ(waits(9 * chunk, {.layer = true, .hidden = false}), passing);
}

TEST_F(PrefillWaits, ASearchForEachTokenAsksForAChunksQueriesAtOnce) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
  offload::Arena arena(topology, pinned_by(*cuda));
  const Model model(testing::golden_models() / "llama", *cuda);
  const auto waits = [&](int chunk_tokens) {
    runtime::SessionOptions options;
    options.cache.block_tokens = block;
    options.cache.window = window;
    options.chunk_tokens = chunk_tokens;
    options.prefill.kind = runtime::PrefillOptions::Kind::topk;
    options.prefill.k = {4, 0};
    options.prefill.window = 8;
    runtime::Session session(model, arena, options);
    session.append(std::vector<std::int32_t>(4 * block, 7));
    const std::int64_t before = host_waits();
    session.append(std::vector<std::int32_t>(static_cast<std::size_t>(chunk_tokens), 9));
    return host_waits() - before;
  };
  waits(6);  // pins
  EXPECT_EQ(waits(6), waits(3));
}

TEST_F(PrefillWaits, HiddenStatesMayPassThroughAnyMemoryInAnyOrder) {
  const int tokens = 5 * chunk + 3;
  const std::vector<float> expected = read(tokens, {.layer = true, .hidden = true}).logits;
  for (std::uint64_t order = 1; order <= 2; ++order) {
    reset(order);
    EXPECT_EQ(read(tokens, {.layer = true, .hidden = false}).logits, expected) << "seed " << order;
  }
  // Nothing may be pinned: the host waits for every copy.
  EXPECT_EQ(read(tokens, {.layer = true, .hidden = false}, gpu::KvHost::staged).logits, expected);
  // Pinning is refused.
  reset();
  device().registrable_bytes = std::uint64_t{40} << 20;
  EXPECT_EQ(read(tokens, {.layer = true, .hidden = false}).logits, expected);
}

TEST_F(PrefillWaits, HiddenStatesComeBackAsTheyLeft) {
  const auto cuda = testing::make_cuda();
  constexpr int tokens = 5 * chunk + 3, width = 4, passes = 3;
  const auto bytes_of = [](int T) { return static_cast<std::uint64_t>(T * width) * sizeof(float); };
  std::vector<float> first(static_cast<std::size_t>(tokens * width));
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>(i);
  const gpu::Buffer fresh = testing::upload(*cuda, first);
  for (std::uint64_t order = 1; order <= 40; ++order) {
    reset(order);
    runtime::HiddenStates hidden(*cuda, tokens, width, chunk, false);
    const gpu::Buffer found = cuda->allocate(bytes_of(tokens), cuda->stream());
    for (int pass = 0; pass <= passes; ++pass) {
      for (int at = 0; at < tokens; at += chunk) {
        const int T = std::min(chunk, tokens - at);
        float* const states = hidden.begin(at, pass == 0);
        if (pass == 0) cuda->copy(states, fresh.as<float>() + at * width, bytes_of(T), cuda->stream());
        if (pass == passes) {
          cuda->copy(found.as<float>() + at * width, states, bytes_of(T), cuda->stream());
        } else {
          cuda->add(states, states, T * width, cuda->stream());
          hidden.keep(at, T);
        }
      }
    }
    const std::vector<float> doubled = testing::download<float>(*cuda, found);
    for (std::size_t i = 0; i < first.size(); ++i) ASSERT_EQ(doubled[i], 8 * first[i]) << "seed " << order;
  }
}

TEST_F(PrefillWaits, ASessionKeepsHiddenStatesOnTheDeviceWhereTheyFit) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda({.memory_bytes = std::uint64_t{2} << 30});
  offload::Arena arena(topology, pinned_by(*cuda));
  const Model model(testing::golden_models() / "llama", *cuda);
  runtime::SessionOptions options;
  options.cache.block_tokens = block;
  options.cache.window = window;
  options.chunk_tokens = chunk;
  options.prefill.order = runtime::PrefillOptions::Order::layer;
  const auto copies = [&] {
    runtime::Session session(model, arena, options);
    const std::int64_t before = calls("cudaMemcpyAsync");
    session.append(std::vector<std::int32_t>(4 * chunk, 7));
    return calls("cudaMemcpyAsync") - before;
  };
  copies();  // pins
  const std::int64_t few = copies();
  const gpu::DeviceMemory now = cuda->memory();
  const gpu::Buffer taken =
      cuda->allocate(now.budget_bytes - now.used_bytes - (std::uint64_t{64} << 20), cuda->stream());
  // In but for layer 0, out but for the last, four chunks each.
  EXPECT_GE(copies(), few + 2 * 4 * (model.config().layers - 1));
}

}  // namespace
}  // namespace hayloft::simt
