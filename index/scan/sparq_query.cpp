#include "index/scan/sparq_query.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "offload/error.h"

namespace hayloft::index {

namespace {

std::vector<float> importance(const float* q, int queries, int head_dim, const float* spread) {
  std::vector<float> magnitude(static_cast<std::size_t>(head_dim));
  for (int h = 0; h < queries; ++h) {
    for (int i = 0; i < head_dim; ++i) magnitude[i] += std::fabs(q[h * head_dim + i]);
  }
  for (int i = 0; spread != nullptr && i < head_dim; ++i) magnitude[i] *= spread[i];
  return magnitude;
}

}  // namespace

void require_planes(offload::ColumnFormat columns) {
  if (in_planes(columns)) return;
  fail("bit planes, and components ordered by qk, need key columns in planes, and these are {}; use --columns planes",
       name(columns));
}

void sparq_components(const float* q, int queries, int head_dim, const float* spread, int rank,
                      std::int32_t* components) {
  const std::vector<float> magnitude = importance(q, queries, head_dim, spread);
  std::vector<std::int32_t> order(static_cast<std::size_t>(head_dim));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return magnitude[a] > magnitude[b]; });
  std::copy_n(order.begin(), rank, components);
  std::sort(components, components + rank);
}

void plane_components(const float* q, int queries, int head_dim, const float* spread, int bits,
                      std::int32_t* components, std::uint8_t* planes) {
  const std::vector<float> magnitude = importance(q, queries, head_dim, spread);
  struct Plane {
    std::uint32_t worth;
    std::int32_t component;
  };
  std::vector<Plane> all;
  for (int i = 0; i < head_dim; ++i) {
    for (int p = 0; p < offload::plane_count; ++p) {
      const float worth = magnitude[static_cast<std::size_t>(i)] / static_cast<float>(1 << p);
      all.push_back({std::bit_cast<std::uint32_t>(worth) & 0x7fffffff, i});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Plane& a, const Plane& b) { return a.worth > b.worth; });
  all.resize(std::min(all.size(), static_cast<std::size_t>(bits)));
  std::vector<std::uint8_t> read(static_cast<std::size_t>(head_dim));
  for (const Plane& plane : all) ++read[static_cast<std::size_t>(plane.component)];
  std::vector<std::int32_t> order(read.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return read[a] > read[b]; });
  for (int j = 0; j < plane_rank(head_dim, bits); ++j) {
    components[j] = order[static_cast<std::size_t>(j)];
    planes[j] = read[static_cast<std::size_t>(components[j])];
  }
}

SparqQuery sparq_query(const float* q, int query_heads, int kv_heads, int head_dim, const offload::LayerView& store,
                       const RankingOptions& options) {
  const int d = head_dim;
  if (kv_heads < 1 || query_heads < kv_heads || query_heads % kv_heads != 0) {
    fail("SparQ's step 1: {} query heads cannot share {} KV heads; use a multiple", query_heads, kv_heads);
  }
  if (options.components(d) < 1 || options.components(d) > d) {
    fail("SparQ's step 1: rank {} is out of range; use 1 to {}, the head dimension", options.components(d), d);
  }
  if (options.needs_planes()) require_planes(store.layout->columns);
  SparqQuery query;
  const int group = query_heads / kv_heads;
  const int r = query.rank = options.components(d);
  query.components.resize(static_cast<std::size_t>(kv_heads * r));
  if (options.bits > 0) query.planes.resize(query.components.size());
  query.weights.resize(static_cast<std::size_t>(query_heads * r));
  for (int head = 0; head < kv_heads; ++head) {
    std::int32_t* const chosen = query.components.data() + head * r;
    const float* const of_group = q + head * group * d;
    const float* const spread = options.needs_planes() ? store.spread.data() + head * d : nullptr;
    int used = r;
    if (options.bits > 0) {
      std::uint8_t* const read = query.planes.data() + head * r;
      plane_components(of_group, group, d, spread, options.bits, chosen, read);
      while (used > 0 && read[used - 1] == 0) --used;
    } else {
      sparq_components(of_group, group, d, spread, r, chosen);
    }
    for (int h = head * group; h < (head + 1) * group; ++h) {
      const float* const of_head = q + h * d;
      const float tau = sparq_temperature(of_head, d, chosen, used, options.temperature);
      for (int j = 0; j < used; ++j) query.weights[h * r + j] = of_head[chosen[j]] / tau;
    }
  }
  return query;
}

void SparqQuery::spread_out(int kv_heads, int query_heads, int head_dim, int stride, float* out) const {
  const int group = query_heads / kv_heads;
  for (int h = 0; h < query_heads; ++h) {
    float* const row = out + static_cast<std::ptrdiff_t>(h) * stride;
    std::fill_n(row, head_dim, 0.0f);
    for (int j = 0; j < rank; ++j) {
      const auto at = static_cast<std::size_t>(h / group * rank + j);
      if (!planes.empty() && planes[at] == 0) break;
      row[components[at]] = weights[static_cast<std::size_t>(h * rank + j)];
    }
  }
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

}  // namespace hayloft::index
