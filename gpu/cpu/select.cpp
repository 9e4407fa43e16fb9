#include "gpu/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/rows.h"
#include "index/scan/sparq_query.h"
#include "index/scan/top_positions.h"
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

// The share of the tail, and of sinks, of the softmax over scores `weights` [Hq][padded(d)] . K: the approximate scores
// of SparQ are those of a weight vector that is zero outside the chosen components.
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
      point_to_rows(cache, head, cache.tail.position + first, n, rows.data());
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
    if (cache.sinks != nullptr) merge_sums(tail.max[h], tail.sum[h], cache.sinks[h], 1);
  }
  return tail;
}

}  // namespace

void CpuBackend::top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values, Stream) {
  if (k < 1 || k > n) fail("top_values: k {} is out of range; use 1 to {}, the number of values", k, n);
  const float bound = index::kth_largest({x, static_cast<std::size_t>(n)}, k);
  const bool sorts_out = bound > -std::numeric_limits<float>::infinity();  // otherwise NaN may be among the k
  std::vector<std::int32_t> order;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!sorts_out || x[i] >= bound) order.push_back(static_cast<std::int32_t>(i));
  }
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), [x](std::int32_t a, std::int32_t b) {
    const bool unordered = std::isnan(x[a]) || std::isnan(x[b]);
    if (unordered && std::isnan(x[a]) != std::isnan(x[b])) return std::isnan(x[b]);
    return !unordered && x[a] != x[b] ? x[a] > x[b] : a < b;
  });
  std::copy_n(order.begin(), k, ids);
  std::sort(ids, ids + k);
  for (int i = 0; i < k; ++i) values[i] = x[ids[i]];
}

void CpuBackend::select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                              std::int32_t* positions, float* alpha, Stream) {
  const Stage stage(stages_, "select_sparq");
  const index::SparqQuery query = index::sparq_query(q, query_heads, cache.kv_heads, cache.head_dim, cache.store, args);
  const int stride = padded(cache.head_dim);
  std::vector<float> weights(static_cast<std::size_t>(query_heads * stride));
  query.spread_out(cache.kv_heads, query_heads, cache.head_dim, stride, weights.data());
  const Normaliser tail = sum_tail(cache, weights, query_heads, threads_);
  if (cache.store.tokens == 0) {  // nothing to select from: the tail is attended whole
    std::fill_n(alpha, query_heads, 1.0f);
    return;
  }
  index::ColumnSearch search;
  search.query_heads = query_heads;
  search.rank = query.rank;
  search.rule = args.rule;
  search.components = query.components.data();
  if (!query.planes.empty()) search.planes = query.planes.data();
  search.weights = query.weights.data();
  search.limit = args.limit;
  search.k = args.k;
  index::search_with_alpha(cache.store, search, threads_, tail.max.data(), tail.sum.data(), positions, alpha,
                           args.kept);
}

}  // namespace hayloft::gpu
