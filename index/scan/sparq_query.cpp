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
