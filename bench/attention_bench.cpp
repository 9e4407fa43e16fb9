#include <algorithm>
#include <random>
#include <vector>

#include "bench/common.h"
#include "gpu/backend.h"
#include "gpu/make_backend.h"
#include "index/scan/exact_search.h"

// One decode step's attention per method, and the gather of rows alone: two KV heads of dimension 128 with a group of
// four, so that rows and columns of 1M tokens take 1.5 GiB. Each iteration brings a new query, and short contexts move
// through the store, so that nothing is found in the caches that a real step would not find there.
namespace hayloft::bench {
namespace {

constexpr int kv_heads = 2;
constexpr int group = 4;
constexpr int query_heads = kv_heads * group;
constexpr int head_dim = 128;
constexpr std::int64_t capacity = std::int64_t{1} << 20;
constexpr std::int64_t tail_tokens = 256;
constexpr double row_bytes = 4.0 * head_dim;

class AttentionStore {
 public:
  static const AttentionStore& instance() {
    static const AttentionStore store;
    return store;
  }

  // A context of `tokens` in the store and a tail behind it; `turn` chooses which part of the store.
  gpu::CacheView view(std::int64_t tokens, std::int64_t turn) const {
    const offload::LayerView whole = store_.layer(0);
    const std::int64_t blocks = tokens / store_.layout().block_tokens;
    const std::int64_t first = turn % (capacity / tokens) * blocks;
    gpu::CacheView view;
    view.kv_heads = kv_heads;
    view.head_dim = head_dim;
    view.store = whole;
    view.store.blocks = whole.blocks.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(blocks));
    view.store.tokens = tokens;
    view.tail = {tail_.data(), tail_tokens, 0, tail_tokens, tokens};
    return view;
  }
  const float* query(std::int64_t turn) const { return queries_.data() + turn % queries_made * query_heads * head_dim; }

 private:
  static constexpr std::int64_t queries_made = 61;

  AttentionStore() : store_(arena(), {1, kv_heads, head_dim, 4096, offload::ColumnFormat::f16}) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<f16> noise(1 << 20);
    for (f16& x : noise) x = to_f16(normal(random));
    const int tokens = store_.layout().block_tokens;
    for (std::int64_t begin = 0; begin < capacity; begin += tokens) {
      offload::BlockWriter block = store_.start_block();
      threads().parallel_for(kv_heads, 1, [&](std::int64_t head, std::int64_t) {
        // Rows half as long apart as a row is long: the noise serves a whole block, from another start each time.
        const std::size_t start = static_cast<std::size_t>((begin / tokens * 7919 + head * 104729) % 1000) * 8;
        offload::fill_block(store_.layout(), block.data(), static_cast<int>(head), noise.data() + start, head_dim - 8,
                            tokens);
      });
      store_.commit(0, std::move(block), tokens);
    }
    tail_.assign(noise.begin(), noise.begin() + kv_heads * tail_tokens * 2 * head_dim);
    queries_.resize(static_cast<std::size_t>(queries_made * query_heads * head_dim));
    for (float& x : queries_) x = normal(random);
  }

  offload::Store store_;
  mutable std::vector<f16> tail_;  // TailView points to what a real cache appends to
  std::vector<float> queries_;     // [queries_made][Hq][d]
};

gpu::Backend& backend() {
  static const std::unique_ptr<gpu::Backend> cpu = gpu::make_cpu_backend(threads());
  return *cpu;
}

// Runs step(cache, q, y) once per iteration.
template <class Step>
void decode(benchmark::State& state, std::int64_t tokens, double bytes, const Step& step) {
  const AttentionStore& store = AttentionStore::instance();
  std::vector<float> y(query_heads * head_dim);
  read_repeatedly(state, bytes, [&](std::int64_t turn) {
    step(store.view(tokens, turn), store.query(turn), y.data());
    benchmark::DoNotOptimize(y.data());
  });
}

void row_gather(benchmark::State& state) {
  const int k = static_cast<int>(state.range(0));
  constexpr int lists_made = 16;
  std::mt19937 random(2);
  std::vector<std::int32_t> lists(static_cast<std::size_t>(lists_made * kv_heads * k));
  for (auto list = lists.begin(); list != lists.end(); list += k) {
    std::generate(list, list + k, [&] { return static_cast<std::int32_t>(random() % capacity); });
    std::sort(list, list + k);
  }
  std::int64_t turn = 0;
  decode(state, capacity, kv_heads * k * row_bytes, [&](const gpu::CacheView& cache, const float* q, float* y) {
    gpu::Attended what;
    what.positions = lists.data() + turn++ % lists_made * kv_heads * k;
    what.lists = kv_heads;
    what.k = k;
    backend().attend(cache, q, query_heads, what, y, {});
  });
}
BENCHMARK(row_gather)->ArgName("k")->RangeMultiplier(4)->Range(128, 8192)->UseRealTime();

void step_dense(benchmark::State& state) {
  const std::int64_t S = state.range(0);
  const double bytes = kv_heads * static_cast<double>(S + tail_tokens) * row_bytes;
  decode(state, S, bytes, [&](const gpu::CacheView& cache, const float* q, float* y) {
    gpu::Attended what;
    what.ranges[0] = {0, cache.tokens()};
    backend().attend(cache, q, query_heads, what, y, {});
  });
}

// r = 16, k = 128 of which a quarter is the window, mean value on.
void step_sparq(benchmark::State& state) {
  const std::int64_t S = state.range(0);
  gpu::SparqSelect select;
  select.rank = 16;
  select.k = 96;
  select.limit = S;
  const double bytes =
      kv_heads * (static_cast<double>(S) * select.rank * 2 + static_cast<double>(select.k + tail_tokens) * row_bytes);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(kv_heads * select.k));
  std::vector<float> alpha(query_heads);
  decode(state, S, bytes, [&](const gpu::CacheView& cache, const float* q, float* y) {
    backend().select_sparq(cache, q, query_heads, select, positions.data(), alpha.data(), {});
    gpu::Attended what;
    what.positions = positions.data();
    what.lists = kv_heads;
    what.k = select.k;
    what.ranges[0] = {S, cache.tokens()};
    what.alpha = alpha.data();
    backend().attend(cache, q, query_heads, what, y, {});
  });
}

// k = 32 per query head; every column of K is read.
void step_topk(benchmark::State& state) {
  const std::int64_t S = state.range(0);
  index::ExactSearch select;
  select.query_heads = query_heads;
  select.k = 32;
  select.limit = S;
  const double bytes = kv_heads * (static_cast<double>(S) * head_dim * 2 +
                                   static_cast<double>(group * select.k + tail_tokens) * row_bytes);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(query_heads * select.k));
  decode(state, S, bytes, [&](const gpu::CacheView& cache, const float* q, float* y) {
    index::search_exact(cache.store, q, select, backend().threads(), {positions.data(), nullptr, nullptr, nullptr});
    gpu::Attended what;
    what.positions = positions.data();
    what.lists = query_heads;
    what.k = select.k;
    what.ranges[0] = {S, cache.tokens()};
    backend().attend(cache, q, query_heads, what, y, {});
  });
}

// 16 sinks and the last 1,024 tokens.
void step_window(benchmark::State& state) {
  const std::int64_t S = state.range(0);
  constexpr std::int64_t sinks = 16;
  constexpr std::int64_t recent = 1024;
  decode(state, S, kv_heads * (sinks + recent) * row_bytes, [&](const gpu::CacheView& cache, const float* q, float* y) {
    gpu::Attended what;
    what.ranges[0] = {0, sinks};
    what.ranges[1] = {cache.tokens() - recent, cache.tokens()};
    backend().attend(cache, q, query_heads, what, y, {});
  });
}

void contexts(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t tokens : context_lengths) benchmark->Arg(tokens);
  benchmark->ArgName("S")->Unit(benchmark::kMillisecond)->UseRealTime();
}
BENCHMARK(step_dense)->Apply(contexts);
BENCHMARK(step_sparq)->Apply(contexts);
BENCHMARK(step_topk)->Apply(contexts);
BENCHMARK(step_window)->Apply(contexts);

}  // namespace
}  // namespace hayloft::bench
