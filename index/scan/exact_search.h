#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "index/scan/search.h"

// What a search that scores exactly, q . K / sqrt(d) over every component of the 16-bit keys, is made of.
namespace hayloft::index {

// 1 / sqrt(d), rounded once.
inline float softmax_scale(int head_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
}

// [heads][components]: 0 to components - 1 for each head.
inline std::vector<std::int32_t> every_component(int heads, int components) {
  std::vector<std::int32_t> all;
  for (int head = 0; head < heads; ++head) {
    for (int c = 0; c < components; ++c) all.push_back(c);
  }
  return all;
}

// Where the keys lie as they are attended: integer columns are not exact, so they are taken from the rows then.
inline KeySource exact_keys(const offload::LayerView& view) {
  const bool exact = view.tokens == 0 || view.layout->columns == offload::ColumnFormat::f16;
  return exact ? KeySource::columns : KeySource::rows;
}

}  // namespace hayloft::index
