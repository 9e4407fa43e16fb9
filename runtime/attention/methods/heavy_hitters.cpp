#include "runtime/attention/methods/heavy_hitters.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "gpu/make_backend.h"
#include "index/scan/attention_mass.h"
#include "index/scan/exact_search.h"
#include "offload/error.h"
#include "offload/store/transpose.h"
#include "runtime/attention/host_tail.h"

namespace hayloft::runtime {
namespace {

constexpr std::int64_t spare_rows = 64;  // room for so many more before the rows move to a larger buffer

// The `recent` last of n positions and of the others those with the most mass, ties to the smaller one: k in all,
// ascending.
std::vector<std::int64_t> survivors(const std::vector<double>& mass, std::int64_t k, std::int64_t recent) {
  const auto n = static_cast<std::int64_t>(mass.size());
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto heavy = order.begin() + (k - recent);
  const auto old = order.end() - recent;
  std::nth_element(order.begin(), heavy, old, [&](std::int64_t a, std::int64_t b) {
    const double x = mass[static_cast<std::size_t>(a)];
    const double y = mass[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::sort(order.begin(), heavy);
  std::copy(old, order.end(), heavy);
  order.resize(static_cast<std::size_t>(k));
  return order;
}

}  // namespace

HeavyHitters::HeavyHitters(const AttentionShape& shape, QuotaOf quota, gpu::Backend& device)
    : shape_(shape),
      quota_(std::move(quota)),
      device_(&device),
      host_(gpu::make_cpu_backend(device.threads())),
      layers_(static_cast<std::size_t>(shape.layers)) {
  for (Layer& layer : layers_) layer.heads.resize(static_cast<std::size_t>(shape.kv_heads));
}

void HeavyHitters::require_seen(const gpu::CacheView& cache, std::int64_t tokens) const {
  const std::int64_t seen = layers_[static_cast<std::size_t>(cache.layer)].seen;
  if (seen == tokens) return;
  fail(
      "--attn h2o keeps what the whole context attended to while it was read, and it saw {} of its {} tokens; read the "
      "context with --attn h2o (ingest: --index h2o{}) and decode with nothing else, or take another method",
      std::min(seen, tokens), tokens, cache.shard.alone() ? "" : ", on one machine");
}

void HeavyHitters::sync_with_cache(std::span<const gpu::CacheView> layers, const StateProgress&) {
  for (const gpu::CacheView& cache : layers) require_seen(cache, cache.tokens());
}

int HeavyHitters::wants_queries(int, int T) const {
  return T;
}

void HeavyHitters::see_queries(const gpu::CacheView& cache, const float* q, int n) {
  Layer& layer = at(cache);
  if (layer.seen != cache.tokens() - n) return;  // sync_with_cache() will say so
  const std::int64_t count = std::int64_t{n} * shape_.query_heads * shape_.head_dim;
  const std::vector<float> queries = copy_to_host(*device_, q, count, device_->stream());
  append_rows(layer, cache, n);
  gather_mass(layer, queries.data(), n, sinks_of(cache));
  evict(layer, quota_(cache.layer, cache.tokens()));
}

void HeavyHitters::attend(const gpu::CacheView& cache, const float* q, float* out) {
  require_seen(cache, cache.tokens() - 1);
  Layer& layer = at(cache);
  append_rows(layer, cache, 1);
  evict(layer, quota_(cache.layer, cache.tokens()));
  const std::vector<float> sinks = sinks_of(cache);
  gather_mass(layer, q, 1, sinks);

  gpu::CacheView kept;
  kept.kv_heads = shape_.kv_heads;
  kept.head_dim = shape_.head_dim;
  kept.tail = {layer.rows.data(), layer.capacity, 0, layer.kept, 0};
  if (!sinks.empty()) kept.sinks = sinks.data();
  gpu::Attended all;
  all.ranges[0] = {0, layer.kept};
  host_->attend(kept, q, shape_.query_heads, all, out, host_->stream());
}

std::uint64_t HeavyHitters::bytes() const {
  std::uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.rows.size() * sizeof(f16);
    for (const Layer::Head& head : layer.heads) {
      bytes += head.positions.size() * sizeof(std::int32_t) + head.mass.size() * sizeof(double);
    }
  }
  return bytes;
}

std::vector<std::int32_t> HeavyHitters::positions(int layer) const {
  std::vector<std::int32_t> all;
  for (const Layer::Head& head : layers_[static_cast<std::size_t>(layer)].heads) {
    all.insert(all.end(), head.positions.begin(), head.positions.end());
  }
  return all;
}

void HeavyHitters::append_rows(Layer& layer, const gpu::CacheView& cache, std::int64_t newest) const {
  const HostTail tail(*device_, cache, device_->stream(), newest);
  if (layer.kept + newest > layer.capacity) set_capacity(layer, layer.kept + newest + spare_rows);
  const std::int64_t row = 2 * shape_.head_dim;
  for (int h = 0; h < shape_.kv_heads; ++h) {
    std::copy_n(tail.rows().row(h, 0, nullptr), newest * row,
                layer.rows.data() + (h * layer.capacity + layer.kept) * row);
    Layer::Head& head = layer.heads[static_cast<std::size_t>(h)];
    for (std::int64_t t = 0; t < newest; ++t) {
      head.positions.push_back(static_cast<std::int32_t>(tail.first() + t));
      head.mass.push_back(0);
    }
  }
  layer.kept += newest;
  layer.seen += newest;
}

std::vector<float> HeavyHitters::sinks_of(const gpu::CacheView& cache) const {
  return sinks_on_host(*device_, cache, shape_.query_heads, device_->stream());
}

void HeavyHitters::gather_mass(Layer& layer, const float* q, std::int64_t n, const std::vector<float>& sinks) const {
  const int d = shape_.head_dim;
  const int group = shape_.query_heads / shape_.kv_heads;
  const float scale = index::exact_scale(d);
  const std::int64_t stride = (layer.kept + 63) / 64 * 64 + 32;  // not a power of two, for the sake of the cache's sets
  std::vector<std::int64_t> visible;
  for (std::int64_t i = 0; i < n * group; ++i) visible.push_back(layer.kept - n + i / group + 1);
  host_->threads().parallel_for(shape_.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<f16> columns(static_cast<std::size_t>(d * stride));
    std::vector<float> queries(static_cast<std::size_t>(n * group * d));
    for (std::int64_t h = begin; h < end; ++h) {
      offload::transpose(layer.rows.data() + h * layer.capacity * 2 * d, 2 * d, static_cast<int>(layer.kept), d,
                         columns.data(), stride);
      float* to = queries.data();
      std::vector<float> own;  // sinks, of each query
      for (std::int64_t i = 0; i < n * group; ++i) {
        if (!sinks.empty()) own.push_back(sinks[static_cast<std::size_t>(h * group + i % group)]);
        const float* const from = q + ((i / group) * shape_.query_heads + h * group + i % group) * d;
        for (int c = 0; c < d; ++c) *to++ = from[c] * scale;
      }
      index::add_attention_mass(
          {columns.data(), stride, d, queries.data(), n * group, visible.data(), own.empty() ? nullptr : own.data()},
          host_->threads(), layer.heads[static_cast<std::size_t>(h)].mass);
    }
  });
}

void HeavyHitters::evict(Layer& layer, const Quota& quota) const {
  if (layer.kept <= quota.k) return;
  const std::int64_t recent = std::clamp<std::int64_t>(quota.recent, 1, quota.k);
  const std::int64_t row = 2 * shape_.head_dim;
  for (int h = 0; h < shape_.kv_heads; ++h) {
    Layer::Head& head = layer.heads[static_cast<std::size_t>(h)];
    f16* const rows = layer.rows.data() + h * layer.capacity * row;
    const std::vector<std::int64_t> stay = survivors(head.mass, quota.k, recent);
    for (std::size_t to = 0; to < stay.size(); ++to) {
      const auto from = static_cast<std::size_t>(stay[to]);
      if (from == to) continue;
      head.positions[to] = head.positions[from];
      head.mass[to] = head.mass[from];
      std::copy_n(rows + stay[to] * row, row, rows + static_cast<std::int64_t>(to) * row);
    }
    head.positions.resize(stay.size());
    head.mass.resize(stay.size());
  }
  layer.kept = quota.k;
  if (layer.capacity > 2 * layer.kept + spare_rows) set_capacity(layer, layer.kept + spare_rows);
}

void HeavyHitters::set_capacity(Layer& layer, std::int64_t capacity) const {
  const std::int64_t row = 2 * shape_.head_dim;
  std::vector<f16> rows(static_cast<std::size_t>(shape_.kv_heads * capacity * row));
  for (int h = 0; h < shape_.kv_heads; ++h) {
    std::copy_n(layer.rows.data() + h * layer.capacity * row, layer.kept * row, rows.data() + h * capacity * row);
  }
  layer.rows = std::move(rows);
  layer.capacity = capacity;
}

}  // namespace hayloft::runtime
