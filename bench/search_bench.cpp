#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "bench/common.h"
#include "index/scan/search.h"
#include "index/scan/sparq_query.h"
#include "index/scan/top_positions.h"

namespace hayloft::bench {
namespace {

// A decode step's query: random, then its r largest components by the group's sum of magnitudes, as SparQ takes them.
struct Query {
  Query(int group, int rank, std::mt19937& engine) {
    constexpr int d = ColumnStore::head_dim;
    std::normal_distribution<float> normal;
    for (int head = 0; head < ColumnStore::kv_heads; ++head) {
      std::vector<float> q(static_cast<std::size_t>(group * d));
      for (float& x : q) x = normal(engine);
      std::vector<float> magnitude(d);
      for (std::size_t i = 0; i < q.size(); ++i) magnitude[i % d] += std::abs(q[i]);
      std::vector<std::int32_t> order(d);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return magnitude[static_cast<std::size_t>(a)] > magnitude[static_cast<std::size_t>(b)];
      });
      std::sort(order.begin(), order.begin() + rank);
      components.insert(components.end(), order.begin(), order.begin() + rank);
      const float unit = 1 / std::sqrt(static_cast<float>(rank));
      for (int h = 0; h < group; ++h) {
        for (int j = 0; j < rank; ++j) {
          weights.push_back(unit * q[static_cast<std::size_t>(h * d + order[static_cast<std::size_t>(j)])]);
        }
      }
    }
  }
  std::vector<std::int32_t> components;
  std::vector<float> weights;
};

std::vector<Query> random_queries(int group, int rank) {
  std::mt19937 engine(1);
  std::vector<Query> queries;
  for (int i = 0; i < 61; ++i) queries.emplace_back(group, rank, engine);
  return queries;
}

// Each iteration searches all KV heads of one layer for a new query, in another part of the store where S is short.
void search(benchmark::State& state, int group, int rank, std::int64_t tokens, index::GroupRule rule,
            index::SelectPer per, bool with_softmax, offload::ColumnFormat format = offload::ColumnFormat::f16) {
  constexpr int k = 128;
  const ColumnStore& store = ColumnStore::instance(format);
  const std::vector<Query> queries = random_queries(group, rank);
  const int query_heads = group * ColumnStore::kv_heads;
  const auto heads = static_cast<std::size_t>(query_heads);
  std::vector<std::int32_t> positions(heads * k);
  std::vector<float> mass(heads);
  const offload::BlockLayout& layout = store.layout();
  const double bytes = static_cast<double>(rank) * static_cast<double>(tokens) / layout.block_tokens *
                       static_cast<double>(layout.column_bytes + layout.scale_bytes) * ColumnStore::kv_heads;
  read_repeatedly(state, bytes, [&](std::int64_t turn) {
    const Query& query = queries[static_cast<std::size_t>(turn) % queries.size()];
    std::vector<float> max(heads, -std::numeric_limits<float>::infinity());
    std::vector<float> sum(heads);
    const index::ColumnSearch search{{.rank = rank, .rule = rule, .per = per},
                                     query_heads,
                                     query.components.data(),
                                     query.weights.data(),
                                     tokens - 32,
                                     k};
    index::search_columns(store.view(tokens, turn), search, threads(),
                          {positions.data(), with_softmax ? max.data() : nullptr, with_softmax ? sum.data() : nullptr,
                           with_softmax ? mass.data() : nullptr});
    benchmark::DoNotOptimize(positions.data());
  });
}

// SparQ step 1 and its selection, g = 4: by the sum of softmaxes, by the sum of logits, and the latter without the
// softmax that only mean-value reallocation needs.
void sparq_scan(benchmark::State& state, index::GroupRule rule, bool with_softmax,
                offload::ColumnFormat format = offload::ColumnFormat::f16) {
  search(state, 4, static_cast<int>(state.range(1)), state.range(0), rule, index::SelectPer::kv_head, with_softmax,
         format);
}
void column_scan(benchmark::State& state) {
  sparq_scan(state, index::GroupRule::softmax, true);
}
void column_scan_int8(benchmark::State& state) {
  sparq_scan(state, index::GroupRule::softmax, true, offload::ColumnFormat::int8);
}
void column_scan_int4(benchmark::State& state) {
  sparq_scan(state, index::GroupRule::softmax, true, offload::ColumnFormat::int4);
}
// Bit planes as a query asks for them whose components matter by degrees: their magnitudes fall by a tenth each, near
// to what trained models' do (the ninth planes of 32 go to 16 of 64 components).
void column_scan_planes(benchmark::State& state) {
  constexpr int k = 128, group = 4, d = ColumnStore::head_dim;
  const auto tokens = state.range(0);
  const auto bits = static_cast<int>(state.range(1));
  const ColumnStore& store = ColumnStore::instance(offload::ColumnFormat::planes);
  const int rank = index::plane_rank(d, bits);
  const int query_heads = group * ColumnStore::kv_heads;
  const auto heads = static_cast<std::size_t>(query_heads);
  std::vector<float> spread(d);
  for (int c = 0; c < d; ++c) spread[static_cast<std::size_t>(c)] = std::pow(0.9f, static_cast<float>(c));
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(heads * d);
  for (float& x : q) x = normal(engine);
  std::vector<std::int32_t> components(static_cast<std::size_t>(ColumnStore::kv_heads * rank));
  std::vector<std::uint8_t> planes(components.size());
  std::vector<float> weights(heads * static_cast<std::size_t>(rank));
  for (int head = 0; head < ColumnStore::kv_heads; ++head) {
    index::plane_components(q.data() + head * group * d, group, d, spread.data(), bits, components.data() + head * rank,
                            planes.data() + head * rank);
  }
  for (float& w : weights) w = normal(engine) / 11;
  std::vector<std::int32_t> positions(heads * k);
  std::vector<float> mass(heads);
  const double bytes = static_cast<double>(tokens) * ColumnStore::kv_heads * bits / 8;
  read_repeatedly(state, bytes, [&](std::int64_t turn) {
    std::vector<float> max(heads, -std::numeric_limits<float>::infinity());
    std::vector<float> sum(heads);
    index::ColumnSearch search{{.rank = rank}, query_heads, components.data(), weights.data(), tokens - 32, k};
    search.planes = planes.data();
    index::search_columns(store.view(tokens, turn), search, threads(),
                          {positions.data(), max.data(), sum.data(), mass.data()});
    benchmark::DoNotOptimize(positions.data());
  });
}
void column_scan_logits(benchmark::State& state) {
  sparq_scan(state, index::GroupRule::logits, true);
}
void column_scan_positions(benchmark::State& state) {
  sparq_scan(state, index::GroupRule::logits, false);
}

// The k keys with the largest inner product for every query head.
void exact_knn(benchmark::State& state) {
  search(state, static_cast<int>(state.range(1)), ColumnStore::head_dim, state.range(0), index::GroupRule::softmax,
         index::SelectPer::query_head, false);
}

// The k best of S scores, by themselves.
void select_top(benchmark::State& state) {
  constexpr int k = 128;
  const std::int64_t tokens = state.range(0);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> scores(static_cast<std::size_t>(tokens));
  for (float& s : scores) s = normal(engine);
  std::vector<std::int32_t> positions(k);
  read_repeatedly(state, static_cast<double>(tokens) * sizeof(float), [&](std::int64_t) {
    index::TopPositions top(k, 0, index::kth_largest(scores, k));
    top.offer(0, static_cast<int>(tokens), scores.data(), nullptr, 0);
    top.finish(positions.data(), nullptr, 0);
    benchmark::DoNotOptimize(positions.data());
  });
}

void every_length(benchmark::internal::Benchmark* b, const char* name, std::initializer_list<std::int64_t> values) {
  b->Unit(benchmark::kMillisecond)->UseRealTime()->ArgNames({"S", name});
  for (const std::int64_t tokens : context_lengths) {
    for (const std::int64_t value : values) b->Args({tokens, value});
  }
}

BENCHMARK(column_scan)->Apply([](auto* b) { every_length(b, "r", {8, 16, 32, 64}); });
BENCHMARK(column_scan_int8)->Apply([](auto* b) { every_length(b, "r", {16, 32}); });
BENCHMARK(column_scan_int4)->Apply([](auto* b) { every_length(b, "r", {16, 32}); });
BENCHMARK(column_scan_planes)->Apply([](auto* b) { every_length(b, "bits", {16, 32, 64}); });
BENCHMARK(column_scan_logits)->Apply([](auto* b) { every_length(b, "r", {16}); });
BENCHMARK(column_scan_positions)->Apply([](auto* b) { every_length(b, "r", {16}); });
BENCHMARK(exact_knn)->Apply([](auto* b) { every_length(b, "g", {1, 4, 8}); });
BENCHMARK(select_top)->Unit(benchmark::kMicrosecond)->UseRealTime()->ArgName("S")->Apply([](auto* b) {
  for (const std::int64_t tokens : context_lengths) b->Arg(tokens);
});

}  // namespace
}  // namespace hayloft::bench
