#include "index/ann/head.h"

#include <algorithm>
#include <array>

namespace hayloft::index {
namespace {

bool better(const Hit& a, const Hit& b) {
  return a.score != b.score ? a.score > b.score : a.position < b.position;
}

}  // namespace

void BestHits::offer(float score, std::int32_t position) {
  if (score != score) return;
  const Hit hit{score, position};
  if (!full()) {
    hits_.push_back(hit);
    std::push_heap(hits_.begin(), hits_.end(), better);
  } else if (better(hit, hits_.front())) {
    std::pop_heap(hits_.begin(), hits_.end(), better);
    hits_.back() = hit;
    std::push_heap(hits_.begin(), hits_.end(), better);
  }
}

void BestHits::offer(const float* scores, const std::int32_t* positions, int n) {
  for (int i = 0; i < n; ++i) offer(scores[i], positions[i]);
}

std::vector<Hit> BestHits::take() {
  std::sort_heap(hits_.begin(), hits_.end(), better);
  return std::move(hits_);
}

void compare_exactly(const KeyRows& rows, const float* q, std::int64_t begin, std::int64_t end, BestHits& best,
                     AnnCost& cost) {
  if (end <= begin) return;
  constexpr std::int64_t run = 256;
  std::array<float, run> scores;
  for (std::int64_t p = begin; p < end; p += run) {
    const std::int64_t stop = std::min(end, p + run);
    score_row_range(rows, q, p, stop, scores.data());
    for (std::int64_t i = p; i < stop; ++i) {
      best.offer(scores[static_cast<std::size_t>(i - p)], static_cast<std::int32_t>(i));
    }
  }
  cost.keys += static_cast<std::uint64_t>(end - begin);
  cost.row_bytes += static_cast<std::uint64_t>(end - begin) * rows.key_bytes();
}

void QueryMoments::add(const float* q, int d) {
  sum.resize(static_cast<std::size_t>(d * d));
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) sum[static_cast<std::size_t>(i * d + j)] += static_cast<double>(q[i]) * q[j];
  }
  ++queries;
}

}  // namespace hayloft::index
