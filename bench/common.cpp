#include "bench/common.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "offload/host/read_memory.h"
#include "offload/host/topology.h"
#include "offload/store/columns.h"

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

ColumnStore::ColumnStore(offload::ColumnFormat format)
    : layout_({.layers = 1, .kv_heads = kv_heads, .head_dim = head_dim, .columns = format}) {
  layout_.columns_offset = 0;
  layout_.scales_offset = layout_.column_bytes * static_cast<std::uint64_t>(head_dim);
  layout_.head_bytes = layout_.scales_offset + layout_.scale_bytes * static_cast<std::uint64_t>(head_dim);
  layout_.block_bytes = layout_.head_bytes * static_cast<std::uint64_t>(kv_heads);
  const std::int64_t narrower =
      static_cast<std::int64_t>(sizeof(f16)) * layout_.block_tokens / static_cast<std::int64_t>(layout_.column_bytes);
  const std::int64_t blocks = narrower * (std::int64_t{1} << 20) / layout_.block_tokens;
  memory_ = arena().allocate(static_cast<std::uint64_t>(blocks) * layout_.block_bytes);

  // Roughly normal: the sum of four uniform numbers, variance 1.
  std::vector<f16> noise(1 << 16);
  std::uint64_t state = 1;
  const auto uniform = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
  };
  for (f16& x : noise) x = to_f16((uniform() + uniform() + uniform() + uniform()) * 1.7320508f);
  threads().parallel_for(blocks * kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    const int run = offload::tokens_per_scale(layout_.columns, layout_.block_tokens);
    std::vector<f16> rows(
        static_cast<std::size_t>(2 * head_dim * run));  // each key component from anywhere in the noise
    for (std::int64_t i = begin; i < end; ++i) {
      std::byte* const base = memory_.data() + static_cast<std::uint64_t>(i) * layout_.head_bytes;
      std::uint64_t mix = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u + 1;
      for (int first = 0; first < layout_.block_tokens; first += run) {
        for (int c = 0; c < head_dim; ++c) {
          mix = mix * 6364136223846793005u + 1442695040888963407u;
          const f16* const from = noise.data() + (mix >> 48) % (noise.size() - static_cast<std::size_t>(run));
          for (int t = 0; t < run; ++t) rows[static_cast<std::size_t>(t * 2 * head_dim + c)] = from[t];
        }
        offload::column_code(format).fill(layout_, base, rows.data(), 2 * head_dim, first, run);
      }
    }
  });
  for (std::int64_t b = 0; b < blocks; ++b) {
    blocks_.push_back(memory_.data() + static_cast<std::uint64_t>(b) * layout_.block_bytes);
  }
}

const ColumnStore& ColumnStore::instance(offload::ColumnFormat format) {
  arena();  // outlives the stores
  static std::mutex making;
  static std::array<std::unique_ptr<const ColumnStore>, offload::column_format_count> stores;
  const std::scoped_lock lock(making);
  std::unique_ptr<const ColumnStore>& store = stores[static_cast<std::size_t>(format)];
  if (!store) store.reset(new ColumnStore(format));
  return *store;
}

offload::LayerView ColumnStore::view(std::int64_t tokens, std::int64_t turn) const {
  const auto per_view = static_cast<std::size_t>(tokens / layout_.block_tokens);
  const std::size_t first = static_cast<std::size_t>(turn) % (blocks_.size() / per_view) * per_view;
  offload::LayerView result;
  result.layout = &layout_;
  result.blocks = std::span(blocks_).subspan(first, per_view);
  result.tokens = tokens;
  return result;
}

}  // namespace hayloft::bench
