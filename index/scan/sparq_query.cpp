#include "index/scan/sparq_query.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace hayloft::index {

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
