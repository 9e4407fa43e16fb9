#include "bench/common.h"

#include <algorithm>
#include <cstring>

#include "offload/host/read_memory.h"
#include "offload/host/topology.h"
#include "offload/store/planes.h"
#include "offload/store/quantise.h"

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
    std::vector<f16> tile(static_cast<std::size_t>(head_dim * run));  // each column's from anywhere in the noise
    for (std::int64_t i = begin; i < end; ++i) {
      std::byte* const base = memory_.data() + static_cast<std::uint64_t>(i) * layout_.head_bytes;
      std::uint64_t mix = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u + 1;
      for (int part = 0; part < layout_.block_tokens / run; ++part) {
        for (int c = 0; c < head_dim; ++c) {
          mix = mix * 6364136223846793005u + 1442695040888963407u;
          const f16* const from = noise.data() + (mix >> 48) % (noise.size() - static_cast<std::size_t>(run));
          std::copy_n(from, run, tile.data() + c * run);
        }
        std::byte* const columns = base + static_cast<std::uint64_t>(part) * layout_.column_bytes *
                                              static_cast<unsigned>(run) / static_cast<unsigned>(layout_.block_tokens);
        if (layout_.columns == offload::ColumnFormat::f16) {
          for (int c = 0; c < head_dim; ++c) {
            std::memcpy(columns + static_cast<std::uint64_t>(c) * layout_.column_bytes, tile.data() + c * run,
                        static_cast<std::size_t>(run) * sizeof(f16));
          }
        } else if (layout_.columns == offload::ColumnFormat::planes) {
          offload::fill_planes(
              layout_, tile.data(), run, head_dim, base + static_cast<unsigned>(part * run) / 8,
              base + layout_.scales_offset + static_cast<unsigned>(part) * sizeof(offload::PlaneRange));
        } else {
          offload::quantise_group(layout_, tile.data(), head_dim, columns,
                                  base + layout_.scales_offset + static_cast<std::uint64_t>(part) * sizeof(f16));
        }
      }
    }
  });
  for (std::int64_t b = 0; b < blocks; ++b) {
    blocks_.push_back(memory_.data() + static_cast<std::uint64_t>(b) * layout_.block_bytes);
  }
}

const ColumnStore& ColumnStore::instance(offload::ColumnFormat format) {
  switch (format) {
    case offload::ColumnFormat::int8: {
      static const ColumnStore int8(offload::ColumnFormat::int8);
      return int8;
    }
    case offload::ColumnFormat::int4: {
      static const ColumnStore int4(offload::ColumnFormat::int4);
      return int4;
    }
    case offload::ColumnFormat::planes: {
      static const ColumnStore planes(offload::ColumnFormat::planes);
      return planes;
    }
    case offload::ColumnFormat::f16:
      break;
  }
  static const ColumnStore f16(offload::ColumnFormat::f16);
  return f16;
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
