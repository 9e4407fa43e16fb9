#include "bench/common.h"

#include <algorithm>
#include <cstring>

#include "offload/read_memory.h"
#include "offload/topology.h"

namespace hayloft::bench {

const offload::Threads& threads() {
  static const offload::Threads pool;
  return pool;
}

offload::Arena& arena() {
  static offload::Arena memory{offload::Topology()};
  return memory;
}

double read_ceiling() {
  static double best = 0;
  const std::span<const std::byte> memory = ColumnStore::instance().memory();
  for (int passes = best == 0 ? 20 : 4; passes > 0; --passes) {
    const auto start = std::chrono::steady_clock::now();
    auto sum = offload::read_memory(memory, threads());
    benchmark::DoNotOptimize(sum);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(offload::bytes_read(memory.size())) / seconds.count());
  }
  return best;
}

void report_bytes(benchmark::State& state, double bytes, double seconds) {
  const double rate = bytes * static_cast<double>(state.iterations()) / seconds;
  state.counters["bytes"] = bytes;
  state.counters["GBps"] = rate / 1e9;
  state.counters["ceiling_fraction"] = rate / read_ceiling();
}

ColumnStore::ColumnStore() : layout_({.layers = 1, .kv_heads = kv_heads, .head_dim = head_dim}) {
  layout_.columns_offset = 0;
  layout_.head_bytes = layout_.column_bytes * static_cast<std::uint64_t>(head_dim);
  layout_.block_bytes = layout_.head_bytes * static_cast<std::uint64_t>(kv_heads);
  const std::int64_t blocks = capacity / layout_.block_tokens;
  memory_ = arena().allocate(static_cast<std::uint64_t>(blocks) * layout_.block_bytes);

  // Roughly normal: the sum of four uniform numbers, variance 1.
  std::vector<f16> noise(1 << 16);
  std::uint64_t state = 1;
  const auto uniform = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
  };
  for (f16& x : noise) x = to_f16((uniform() + uniform() + uniform() + uniform()) * 1.7320508f);
  threads().parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      auto* out = reinterpret_cast<f16*>(memory_.data() + static_cast<std::uint64_t>(b) * layout_.block_bytes);
      std::uint64_t mix = static_cast<std::uint64_t>(b) * 0x9e3779b97f4a7c15u + 1;
      const std::size_t run = 64;  // every 64 tokens of a column are 64 values from anywhere in the noise
      for (std::size_t i = 0; i < layout_.block_bytes / sizeof(f16); i += run) {
        mix = mix * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(out + i, noise.data() + (mix >> 48) % (noise.size() - run), run * sizeof(f16));
      }
    }
  });
  for (std::int64_t b = 0; b < blocks; ++b) {
    blocks_.push_back(memory_.data() + static_cast<std::uint64_t>(b) * layout_.block_bytes);
  }
}

const ColumnStore& ColumnStore::instance() {
  static const ColumnStore store;
  return store;
}

offload::LayerView ColumnStore::view(std::int64_t tokens, std::int64_t turn) const {
  const std::int64_t first = turn % (capacity / tokens) * tokens / layout_.block_tokens;
  offload::LayerView result;
  result.layout = &layout_;
  result.blocks = std::span(blocks_).subspan(static_cast<std::size_t>(first),
                                             static_cast<std::size_t>(tokens / layout_.block_tokens));
  result.tokens = tokens;
  return result;
}

}  // namespace hayloft::bench
