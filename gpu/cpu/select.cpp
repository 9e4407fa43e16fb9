#include "gpu/cpu/select.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/rows.h"
#include "offload/error.h"

namespace hayloft::gpu {
namespace {

constexpr std::int64_t kTailRows = 512;  // tail rows per piece

// (max, sum) of a softmax per query head.
struct Normaliser {
  std::vector<float> max;
  std::vector<float> sum;
  explicit Normaliser(int query_heads)
      : max(static_cast<std::size_t>(query_heads), AttentionState{}.max), sum(static_cast<std::size_t>(query_heads)) {}
};

// The tail's share of the softmax over scores `weights` [Hq][padded(d)] . K: the approximate scores of SparQ are those
// of a weight vector that is zero outside the chosen components.
Normaliser sum_tail(const CacheView& cache, const std::vector<float>& weights, int query_heads,
                    const offload::Threads& threads) {
  const int group = query_heads / cache.kv_heads;
  const int stride = padded(cache.head_dim);
  const std::int64_t parts = (cache.tail.tokens + kTailRows - 1) / kTailRows;
  Normaliser partial(static_cast<int>(parts) * query_heads);  // [Hkv][parts][g]
  threads.parallel_for(cache.kv_heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const f16*> rows(kTailRows);
    for (std::int64_t i = begin; i < end; ++i) {
      const int head = static_cast<int>(i / parts);
      const std::int64_t first = i % parts * kTailRows;
      const std::int64_t n = std::min(kTailRows, cache.tail.tokens - first);
      for (std::int64_t row = 0; row < n; ++row) {
        rows[row] = row_of(cache, head, cache.tail.position + first + row);
      }
      sum_rows(rows.data(), n,
               {weights.data() + static_cast<std::int64_t>(head) * group * stride, group, cache.head_dim, stride,
                nullptr, partial.max.data() + i * group, partial.sum.data() + i * group});
    }
  });
  Normaliser tail(query_heads);
  for (int h = 0; h < query_heads; ++h) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t at = (h / group * parts + part) * group + h % group;
      merge_sums(tail.max[h], tail.sum[h], partial.max[at], partial.sum[at]);
    }
  }
  return tail;
}

// Of exact logits.
float exact_scale(int head_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace

void sparq_components(const float* q, int queries, int head_dim, int rank, std::int32_t* components) {
  std::vector<float> magnitude(static_cast<std::size_t>(head_dim));
  for (int h = 0; h < queries; ++h) {
    for (int i = 0; i < head_dim; ++i) magnitude[i] += std::fabs(q[h * head_dim + i]);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(head_dim));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return magnitude[a] > magnitude[b]; });
  std::copy_n(order.begin(), rank, components);
  std::sort(components, components + rank);
}

void top_values_cpu(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values) {
  if (k < 1 || k > n) fail("top_values: k {} is out of range; use 1 to {}, the number of values", k, n);
  const auto larger = [x](std::int32_t a, std::int32_t b) {
    const bool unordered = std::isnan(x[a]) || std::isnan(x[b]);
    if (unordered && std::isnan(x[a]) != std::isnan(x[b])) return std::isnan(x[b]);
    return !unordered && x[a] != x[b] ? x[a] > x[b] : a < b;
  };
  if (k == 1) {
    std::int32_t best = 0;
    for (std::int64_t i = 1; i < n; ++i) {
      if (larger(static_cast<std::int32_t>(i), best)) best = static_cast<std::int32_t>(i);
    }
    ids[0] = best;
  } else {
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), larger);
    std::copy_n(order.begin(), k, ids);
    std::sort(ids, ids + k);
  }
  for (int i = 0; i < k; ++i) values[i] = x[ids[i]];
}

float sparq_temperature(const float* q, int head_dim, const std::int32_t* components, int rank,
                        Temperature temperature) {
  if (temperature == Temperature::head_dim) return static_cast<float>(std::sqrt(static_cast<double>(head_dim)));
  if (temperature == Temperature::rank) return static_cast<float>(std::sqrt(static_cast<double>(rank)));
  double all = 0;
  for (int i = 0; i < head_dim; ++i) all += std::fabs(q[i]);
  double chosen = 0;
  for (int j = 0; j < rank; ++j) chosen += std::fabs(q[components[j]]);
  return chosen > 0 ? static_cast<float>(std::sqrt(head_dim * chosen / all)) : 1.0f;
}

void select_sparq_cpu(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                      std::int32_t* positions, float* alpha, const offload::Threads& threads) {
  const int d = cache.head_dim;
  const int group = query_heads / cache.kv_heads;
  const int stride = padded(d);
  std::vector<std::int32_t> components(static_cast<std::size_t>(cache.kv_heads * args.rank));
  std::vector<float> weights(static_cast<std::size_t>(query_heads * args.rank));
  std::vector<float> spread(static_cast<std::size_t>(query_heads * stride));  // the weights at their components
  for (int head = 0; head < cache.kv_heads; ++head) {
    std::int32_t* chosen = components.data() + head * args.rank;
    sparq_components(q + head * group * d, group, d, args.rank, chosen);
    for (int h = head * group; h < (head + 1) * group; ++h) {
      const float tau = sparq_temperature(q + h * d, d, chosen, args.rank, args.temperature);
      for (int j = 0; j < args.rank; ++j) {
        weights[h * args.rank + j] = q[h * d + chosen[j]] / tau;
        spread[h * stride + chosen[j]] = weights[h * args.rank + j];
      }
    }
  }
  const Normaliser tail = sum_tail(cache, spread, query_heads, threads);
  if (cache.store.tokens == 0) {  // nothing to select from: the tail is attended whole
    std::fill_n(alpha, query_heads, 1.0f);
    return;
  }
  Normaliser all = tail;
  std::vector<float> mass(static_cast<std::size_t>(query_heads));
  index::search_columns(cache.store,
                        {query_heads, args.rank, components.data(), weights.data(), args.limit, args.k, args.rule,
                         index::SelectPer::kv_head},
                        threads, {positions, all.max.data(), all.sum.data(), mass.data()});
  for (int h = 0; h < query_heads; ++h) {
    const float attended = mass[h] + tail.sum[h] * rescale(tail.max[h], all.max[h]);
    alpha[h] = std::min(attended / all.sum[h], 1.0f);  // rounding alone can take it past one
  }
}

void search_exact(const offload::LayerView& store, const float* q, int query_heads, const ExactSelect& args,
                  float* tail_max, float* tail_sum, std::int32_t* positions, const offload::Threads& threads) {
  if (args.k == 0) return;
  if (args.faiss) {
    if (args.per != index::SelectPer::query_head) {
      fail("--topk-engine faiss selects per query head only; use --topk-engine own to select per KV head");
    }
    return index::faiss_flat_search(store, q, query_heads, args.limit, args.k, threads, positions);
  }
  const int d = store.layout->head_dim;
  std::vector<std::int32_t> components(static_cast<std::size_t>(store.layout->kv_heads * d));
  for (std::size_t i = 0; i < components.size(); ++i) components[i] = static_cast<std::int32_t>(i) % d;
  std::vector<float> weights(q, q + static_cast<std::ptrdiff_t>(query_heads) * d);
  for (float& weight : weights) weight *= exact_scale(d);
  index::SearchResult result;
  result.positions = positions;
  result.max = tail_max;
  result.sum = tail_sum;
  // Integer columns are not exact.
  const bool exact = store.tokens == 0 || store.layout->columns == offload::ColumnFormat::f16;
  index::search_columns(store,
                        {query_heads, d, components.data(), weights.data(), args.limit, args.k, args.rule, args.per,
                         exact ? index::KeySource::columns : index::KeySource::rows},
                        threads, result);
}

void select_exact_cpu(const CacheView& cache, const float* q, int query_heads, const ExactSelect& args,
                      std::int32_t* positions, const offload::Threads& threads) {
  if (!needs_tail_softmax(args)) {
    return search_exact(cache.store, q, query_heads, args, nullptr, nullptr, positions, threads);
  }
  const int d = cache.head_dim;
  const int stride = padded(d);
  std::vector<float> aligned(static_cast<std::size_t>(query_heads * stride));
  for (int h = 0; h < query_heads; ++h) {
    for (int i = 0; i < d; ++i) aligned[h * stride + i] = q[h * d + i] * exact_scale(d);
  }
  Normaliser tail = sum_tail(cache, aligned, query_heads, threads);
  search_exact(cache.store, q, query_heads, args, tail.max.data(), tail.sum.data(), positions, threads);
}

}  // namespace hayloft::gpu
