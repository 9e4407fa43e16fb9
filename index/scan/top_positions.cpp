#include "index/scan/top_positions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "index/scan/softmax.h"

namespace hayloft::index {
float kth_largest(std::span<const float> values, std::int64_t k) {
  // k groups whose maxima reach a bound hold k values that do. With fewer than 2 k groups the bound sorts out little.
  const std::size_t group = std::clamp<std::size_t>(
      std::bit_floor(values.size() / static_cast<std::size_t>(std::max<std::int64_t>(2 * k, 1))), 1, 16);
  const std::size_t groups = values.size() / group;
  std::vector<float> high;  // all that may be among the k largest
  const auto take = [&high](float v, float bound) {
    if (v >= bound) high.push_back(v);
  };
  if (group > 1) {
    std::vector<float> maxima(groups, -infinity);
    for (std::size_t j = 0; j < group; ++j) {
      const float* row = values.data() + j * groups;  // a group's values lie far apart, so that this loop is SIMD
      for (std::size_t i = 0; i < groups; ++i) maxima[i] = row[i] > maxima[i] ? row[i] : maxima[i];
    }
    const float bound = kth_largest(maxima, k);
    for (std::size_t i = 0; i < groups; ++i) {
      if (maxima[i] < bound) continue;
      for (std::size_t j = 0; j < group; ++j) take(values[j * groups + i], bound);
    }
    for (const float v : values.subspan(group * groups)) take(v, bound);
  } else {
    for (const float v : values) take(v, -infinity);
  }
  if (high.size() < static_cast<std::size_t>(k)) return -infinity;
  const auto kth = high.begin() + (k - 1);
  std::nth_element(high.begin(), kth, high.end(), std::greater<>());
  return *kth;
}

TopPositions::TopPositions(int k, int heads, float least)
    : k_(static_cast<std::size_t>(k)), heads_(heads), least_(least) {}

void TopPositions::offer(std::int64_t begin, int n, const float* scores, const float* logits, int stride) {
  // The k-th of many sorts out nearly all, where a bound from maxima of quantisation groups knew little.
  if (k_ > 0 && static_cast<std::size_t>(n) >= 4 * k_) {
    least_ = std::max(least_, kth_largest({scores, static_cast<std::size_t>(n)}, static_cast<std::int64_t>(k_)));
  }
  for (int i = 0; i < n; ++i) {
    if (!(scores[i] >= least_)) continue;
    const auto slot = static_cast<std::int32_t>(entries_.size());
    entries_.push_back({scores[i], static_cast<std::int32_t>(begin + i), slot});
    for (int h = 0; h < heads_; ++h) logits_.push_back(logits[static_cast<std::ptrdiff_t>(h) * stride + i]);
    if (entries_.size() < 2 * k_ + 4096) continue;
    keep_best();
    // Later positions lose ties.
    const auto worst = std::min_element(entries_.begin(), entries_.end(),
                                        [](const Entry& a, const Entry& b) { return a.score < b.score; });
    least_ = std::nextafter(worst->score, infinity);
  }
}

void TopPositions::keep_best() {
  if (entries_.size() <= k_) return;
  const auto end = entries_.begin() + static_cast<std::ptrdiff_t>(k_);
  std::nth_element(entries_.begin(), end, entries_.end(), [](const Entry& a, const Entry& b) {
    return a.score > b.score || (a.score == b.score && a.position < b.position);
  });
  entries_.erase(end, entries_.end());
  std::vector<float> kept;
  kept.reserve(entries_.size() * static_cast<std::size_t>(heads_));
  std::int32_t slot = 0;
  for (Entry& entry : entries_) {
    const float* from = logits_.data() + static_cast<std::ptrdiff_t>(entry.slot) * heads_;
    kept.insert(kept.end(), from, from + heads_);
    entry.slot = slot++;
  }
  logits_ = std::move(kept);
}

void TopPositions::finish(std::int32_t* positions, float* logits, std::int64_t row) {
  keep_best();
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.position < b.position; });
  auto entry = entries_.begin();
  std::size_t missing = k_ - entries_.size();
  std::int32_t next = 0;  // smallest position not yet looked at
  for (std::size_t i = 0; i < k_; ++i, ++next) {
    const bool fill = missing > 0 && (entry == entries_.end() || next < entry->position);
    if (fill) {
      --missing;
    } else {
      next = entry->position;
    }
    positions[i] = next;
    for (int h = 0; h < heads_; ++h) {
      logits[h * row + static_cast<std::int64_t>(i)] =
          fill ? std::numeric_limits<float>::quiet_NaN()
               : logits_[static_cast<std::size_t>(entry->slot) * static_cast<std::size_t>(heads_) +
                         static_cast<std::size_t>(h)];
    }
    if (!fill) ++entry;
  }
  entries_.clear();
  logits_.clear();
}

}  // namespace hayloft::index
