#include "runtime/machine/attention_bench.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "offload/clock.h"
#include "offload/error.h"
#include "offload/text/format.h"

namespace hayloft::runtime::plan {
namespace {

constexpr std::int64_t noise_blocks = 8;  // different ones; a store repeats them, in another order in each layer
constexpr int query_turns = 8;            // different queries that steps cycle through
constexpr int heavy = 24;                 // components of a query that are larger than the rest, as in real models
constexpr float heavy_factor = 4;
constexpr int most_steps = 1000;

std::vector<float> queries(const AttentionBench& bench) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(query_turns) * bench.layers * bench.query_heads * bench.head_dim);
  std::size_t i = 0;
  for (float& x : values) {
    const auto component = i++ % static_cast<std::size_t>(bench.head_dim);
    x = normal(random) * (component < heavy ? heavy_factor : 1.0f);
  }
  return values;
}

// Blocks of normal numbers, laid out and quantised as a spill would have them.
std::vector<offload::Extent> noise(const offload::BlockLayout& layout, offload::Arena& arena,
                                   const offload::Threads& threads) {
  std::vector<offload::Extent> blocks;
  for (std::int64_t block = 0; block < noise_blocks; ++block) {
    blocks.push_back(arena.allocate(layout.block_bytes));
    threads.parallel_for(layout.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        std::mt19937 random(static_cast<std::uint32_t>(block * layout.kv_heads + head) + 2);
        std::normal_distribution<float> normal;
        std::vector<f16> rows(static_cast<std::size_t>(layout.block_tokens) * 2 * layout.head_dim);
        for (f16& x : rows) x = to_f16(normal(random));
        offload::fill_block(layout, blocks.back().data(), static_cast<int>(head), rows.data(), 2 * layout.head_dim,
                            layout.block_tokens);
      }
    });
  }
  return blocks;
}

struct Shape {
  std::int64_t blocks;  // per layer
  std::int64_t tail;    // tokens
};

Shape shape_of(const AttentionBench& bench) {
  constexpr std::int64_t least_tail = 1;  // the token whose attention is computed
  const std::int64_t blocks = (bench.tokens - least_tail) / bench.block_tokens;
  return {blocks, bench.tokens - blocks * bench.block_tokens};
}

std::uint64_t query_bytes(const AttentionBench& bench) {
  return std::uint64_t{query_turns} * static_cast<std::uint64_t>(bench.layers) *
         static_cast<std::uint64_t>(bench.query_heads) * static_cast<std::uint64_t>(bench.head_dim) * sizeof(float);
}

// Before anything is allocated: how many layers there is room for, besides the noise and the queries. The queries lie
// outside the arena and are counted in all the same: nobody has memory for many times what the budget is.
int layers_that_fit(const AttentionBench& bench, const offload::BlockLayout& layout, const offload::Arena& arena) {
  // Blocks do not straddle the arena's chunks, so part of each chunk is lost; room for one block per GiB covers it.
  const std::uint64_t extent =
      (layout.block_bytes + offload::Arena::alignment - 1) / offload::Arena::alignment * offload::Arena::alignment;
  const std::uint64_t free = arena.budget_bytes() - arena.used_bytes();
  const std::uint64_t beside = std::uint64_t{noise_blocks} * extent;
  if (beside > free || query_bytes(bench) > free - beside) {
    fail(
        "this shape takes {} of host memory for {} blocks of noise and {} for queries, and {} is free: use a smaller "
        "--shape, fewer --block-tokens, a larger --host-memory",
        format_bytes(beside), noise_blocks, format_bytes(query_bytes(bench)), format_bytes(free));
  }
  const std::uint64_t lost = beside + (free >> 30) * extent + extent;
  const std::uint64_t room = free > lost ? (free - lost) / extent : 0;
  const auto blocks = static_cast<std::uint64_t>(shape_of(bench).blocks);
  if (blocks == 0) return bench.layers;
  const std::uint64_t layers = room / blocks;
  if (layers == 0) {
    fail(
        "one layer of {} tokens takes {} of host memory and {} is free: use a shorter --ctx-size, a larger "
        "--host-memory",
        bench.tokens, format_bytes(blocks * extent), format_bytes(free));
  }
  return static_cast<int>(std::min<std::uint64_t>(layers, static_cast<std::uint64_t>(bench.layers)));
}

}  // namespace

std::vector<PartTime> shares(const std::vector<gpu::StageTime>& stages, double whole_seconds, double ms) {
  double sum = 0;
  for (const gpu::StageTime& stage : stages) sum += stage.seconds;
  std::vector<PartTime> parts;
  for (const gpu::StageTime& stage : stages) {
    parts.push_back({stage.name, stage.seconds / std::max({whole_seconds, sum, 1e-12}) * ms});
  }
  return parts;
}

namespace {

class Run {
 public:
  Run(gpu::Backend& backend, offload::Arena& arena, const AttentionBench& bench, const AttentionBenchHooks& hooks)
      : backend_(backend),
        bench_(bench),
        hooks_(hooks),
        stream_(backend.stream()),
        shape_{0, bench.kv_heads, bench.head_dim, bench.block_tokens, bench.columns, bench.rows},
        store_(fill(arena)) {
    const std::vector<float> q = queries(bench);
    queries_ = backend.allocate(q.size() * sizeof(float), stream_);
    backend.to_device(queries_.as<void>(), q.data(), q.size() * sizeof(float), stream_);
    backend.synchronize(stream_);
    out_ = backend.allocate(static_cast<std::uint64_t>(bench.query_heads) * bench.head_dim * sizeof(float), stream_);
  }

  int layers() const { return shape_.layers; }
  std::uint64_t host_bytes() const { return store_.bytes(); }

  AttentionBenchRow measure(const MethodOptions& options) {
    say(options.name);
    const SharedMethod method = make_method(options, bench_.head_dim);
    method->require_columns(bench_.columns);
    state_ = method->make_state({shape_.layers, bench_.query_heads, bench_.kv_heads, bench_.head_dim}, backend_);
    if (state_) {
      std::vector<gpu::CacheView> layers;
      for (int layer = 0; layer < shape_.layers; ++layer) layers.push_back(view(layer));
      state_->sync_with_cache(layers, {});
    }
    AttentionBenchRow row;
    row.attn = options;
    row.counters = scaled(step(*method, 0));
    backend_.synchronize(stream_);
    std::vector<double> times;
    const Clock::time_point start = Clock::now();
    do {
      const Clock::time_point before = Clock::now();
      step(*method, static_cast<int>(times.size()) + 1);
      backend_.synchronize(stream_);
      times.push_back(seconds_since(before) * 1e3 * factor());
    } while (times.size() < 3 || (seconds_since(start) < bench_.seconds && times.size() < most_steps));
    std::sort(times.begin(), times.end());
    row.steps = static_cast<int>(times.size());
    row.ms_low = times[times.size() / 4];
    row.ms = times[times.size() / 2];
    row.ms_high = times[times.size() * 3 / 4];

    const double step_ms = row.ms / factor();
    const int timed = std::clamp(static_cast<int>(1000 * bench_.seconds / 4 / step_ms), 1, 20);
    backend_.time_stages(true);
    backend_.synchronize(stream_);
    const Clock::time_point whole_start = Clock::now();
    for (int i = 0; i < timed; ++i) step(*method, i);
    backend_.synchronize(stream_);
    const double whole = seconds_since(whole_start);
    row.stages = shares(backend_.stage_times(), whole, row.ms);
    backend_.time_stages(false);
    return row;
  }

 private:
  double factor() const { return static_cast<double>(bench_.layers) / shape_.layers; }

  Counters scaled(Counters counters) const {
    const auto scale = [&](std::uint64_t& x) {
      x = x / static_cast<std::uint64_t>(shape_.layers) * static_cast<std::uint64_t>(bench_.layers);
    };
    scale(counters.elements);
    scale(counters.positions_scored);
    scale(counters.rows_fetched);
    for (auto& place : counters.bytes) std::for_each(place.begin(), place.end(), scale);
    return counters;
  }

  void say(const std::string& what) const {
    if (hooks_.progress) hooks_.progress(what);
  }

  // Fills store and tail.
  offload::Store fill(offload::Arena& arena) {
    const Shape shape = shape_of(bench_);
    shape_.layers = 1;
    const offload::BlockLayout layout(shape_);
    shape_.layers = layers_that_fit(bench_, layout, arena);
    for (const MethodOptions& method : bench_.methods) {
      if (method.k.by_layer().size() < 2 || shape_.layers == bench_.layers) continue;
      fail(
          "--attn-k {}: memory holds {} of {} layers, which cannot stand for others with another k; give one k, or a "
          "larger --host-memory",
          method.k.text(), shape_.layers, bench_.layers);
    }
    const std::vector<offload::Extent> blocks = noise(layout, arena, backend_.threads());
    offload::Store store(arena, shape_);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      std::vector<offload::BlockWriter> blocks_of_layer = store.start_blocks(static_cast<std::size_t>(shape.blocks));
      for (std::int64_t i = 0; i < shape.blocks; ++i) {
        offload::BlockWriter& block = blocks_of_layer[static_cast<std::size_t>(i)];
        const std::byte* from = blocks[static_cast<std::size_t>((i * 5 + layer) % noise_blocks)].data();
        constexpr std::int64_t piece = std::int64_t{1} << 20;
        const auto bytes = static_cast<std::int64_t>(layout.block_bytes);
        backend_.threads().parallel_for(bytes, piece, [&](std::int64_t begin, std::int64_t end) {
          std::memcpy(block.data() + begin, from + begin, static_cast<std::size_t>(end - begin));
        });
        store.commit(layer, std::move(block), bench_.block_tokens);
      }
      say(fmt::format("layer {} of {} filled", layer + 1, shape_.layers));
    }
    // The tail's slots of all heads lie behind one another, as do the rows of a block's first head.
    const std::int64_t elements = shape.tail * 2 * bench_.head_dim;
    const std::uint64_t head_bytes = static_cast<std::uint64_t>(elements) * sizeof(f16);
    const std::byte* const blocks_of_noise[] = {blocks[0].data()};
    const offload::LayerView noise_rows{&layout, blocks_of_noise, layout.block_tokens, {}};
    std::vector<f16> space(static_cast<std::size_t>(elements));
    tail_ = backend_.allocate(head_bytes * static_cast<std::uint64_t>(bench_.kv_heads), stream_);
    for (int head = 0; head < bench_.kv_heads; ++head) {
      backend_.to_device(tail_.as<std::byte>() + static_cast<std::uint64_t>(head) * head_bytes,
                         noise_rows.rows(head, 0, shape.tail, space.data()), head_bytes, stream_);
    }
    backend_.synchronize(stream_);
    return store;
  }

  gpu::CacheView view(int layer) const {
    const std::int64_t tail = shape_of(bench_).tail;
    gpu::CacheView cache;
    cache.layer = layer;
    cache.kv_heads = bench_.kv_heads;
    cache.head_dim = bench_.head_dim;
    cache.store = store_.layer(layer);
    cache.tail = {tail_.as<f16>(), tail, 0, tail, cache.store.tokens};
    return cache;
  }

  Counters step(const Method& method, int turn) {
    Counters counters;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const gpu::CacheView cache = view(layer);
      const std::int64_t row = static_cast<std::int64_t>(turn % query_turns) * bench_.layers + layer;
      const float* q = queries_.as<float>() + row * bench_.query_heads * bench_.head_dim;
      const LayerStep at{backend_, stream_, layer, cache, store_, bench_.query_heads, 1, scratch_};
      counters += method.attend({at, q, out_.as<float>(), *attender_, state_.get()});
    }
    return counters;
  }

  gpu::Backend& backend_;
  const AttentionBench& bench_;
  const AttentionBenchHooks& hooks_;
  gpu::Stream stream_;
  const SharedAttender attender_ = local_attender();
  offload::StoreShape shape_;
  gpu::Buffer tail_;
  offload::Store store_;
  gpu::Buffer queries_;
  gpu::Buffer out_;
  MethodScratch scratch_;
  std::unique_ptr<MethodState> state_;  // of the method being measured
};

}  // namespace

AttentionBenchResult bench_attention(gpu::Backend& backend, offload::Arena& arena, const AttentionBench& bench,
                                     const AttentionBenchHooks& hooks) {
  if (bench.tokens < 1) fail("--ctx-size {}: must be at least 1", bench.tokens);
  const Clock::time_point start = Clock::now();
  Run run(backend, arena, bench, hooks);
  AttentionBenchResult result;
  result.measured_layers = run.layers();
  result.host_bytes = run.host_bytes();
  result.fill_seconds = seconds_since(start);
  if (hooks.measured) hooks.measured(result);
  for (const MethodOptions& method : bench.methods) {
    result.rows.push_back(run.measure(method));
    if (hooks.measured) hooks.measured(result);
  }
  return result;
}

}  // namespace hayloft::runtime::plan
