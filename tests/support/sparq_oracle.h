#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gpu/backend.h"

// Computes what SparQ's step 1 does with the queries of one KV head, in double (arXiv 2312.04985, section 4 and
// appendix B): the oracle of both backends' selections.
namespace hayloft::testing {

// i1: the `rank` components with the largest sum of |q| over the group, largest first, ties to the smaller index.
// q is f32 [group][head_dim].
inline std::vector<int> sparq_oracle_components(const float* q, int group, int head_dim, int rank) {
  std::vector<double> magnitude(static_cast<std::size_t>(head_dim));
  for (int h = 0; h < group; ++h) {
    for (int i = 0; i < head_dim; ++i) magnitude[static_cast<std::size_t>(i)] += std::fabs(q[h * head_dim + i]);
  }
  std::vector<int> order(static_cast<std::size_t>(head_dim));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return magnitude[static_cast<std::size_t>(a)] > magnitude[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(rank));
  return order;
}

// tau of one query [head_dim], by figure 7b.
inline double sparq_oracle_temperature(const float* q, int head_dim, const std::vector<int>& components,
                                       index::Temperature temperature = index::Temperature::coverage) {
  if (temperature == index::Temperature::head_dim) return std::sqrt(static_cast<double>(head_dim));
  if (temperature == index::Temperature::rank) return std::sqrt(static_cast<double>(components.size()));
  double all = 0;
  double chosen = 0;
  for (int i = 0; i < head_dim; ++i) all += std::fabs(q[i]);
  for (const int i : components) chosen += std::fabs(q[i]);
  return std::sqrt(head_dim * chosen / all);
}

}  // namespace hayloft::testing
