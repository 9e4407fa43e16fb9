#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hayloft::index {

// The k-th largest of the values, k at least 1, -infinity when there are fewer than k; NaN does not count. Linear in
// the number of values: maxima of groups of up to 16 give a first bound, and only the values above it are ranked.
float kth_largest(std::span<const float> values, std::int64_t k);

// Collects the k positions with the largest scores, ties towards the smaller position, and what the query heads gave
// each of them. Holds a few times k positions at most.
class TopPositions {
 public:
  // least: a score that at least k of the positions to be offered reach; lower ones are dropped at once.
  TopPositions(int k, int heads, float least);

  // Positions [begin, begin + n) with their scores [n] and the query heads' logits [heads][stride]. Positions ascend
  // from call to call. NaN is dropped.
  void offer(std::int64_t begin, int n, const float* scores, const float* logits, int stride);

  // positions [k], ascending, and their logits [heads][row]. Where NaN left fewer than k, the smallest positions that
  // are missing are taken, with NaN for logits. The collection is spent then.
  void finish(std::int32_t* positions, float* logits, std::int64_t row);

 private:
  struct Entry {
    float score;
    std::int32_t position;
    std::int32_t slot;  // of the logits
  };
  void keep_best();

  std::size_t k_;
  int heads_;
  float least_;
  std::vector<Entry> entries_;
  std::vector<float> logits_;  // [slot][heads]
};

}  // namespace hayloft::index
