#include "index/ann_head.h"

#include <algorithm>

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

void QueryMoments::add(const float* q, int d) {
  sum.resize(static_cast<std::size_t>(d * d));
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) sum[static_cast<std::size_t>(i * d + j)] += static_cast<double>(q[i]) * q[j];
  }
  ++queries;
}

}  // namespace hayloft::index
