#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace hayloft::index {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

// The softmax of a part of the positions: its largest logit and the sum of exp(logit - max); (-infinity, 0) of none.
struct PartialSoftmax {
  float max;
  double sum;
};

// The factor that moves a sum of exp(s - from) to a sum of exp(s - to); `to` is at least `from`. A part that has seen
// nothing counts for nothing, even when the other has seen nothing either.
inline float rescale(float from, float to) {
  return from == to ? 1.0f : std::exp(from - to);
}

// Log-sum-exp merge of (max, sum): of the union of two disjoint parts.
inline void merge_sums(float& max, float& sum, float other_max, float other_sum) {
  const float merged = other_max > max || std::isnan(other_max) ? other_max : max;
  sum = sum * rescale(max, merged) + other_sum * rescale(other_max, merged);
  max = merged;
}

// SparQ's alpha: the share of a softmax of this sum that lies on what is attended, whose part of the sum is `mass`.
template <class Mass>
float attended_share(Mass mass, float sum) {
  return std::min(static_cast<float>(mass / sum), 1.0f);  // rounding alone can take it past one
}

}  // namespace hayloft::index
