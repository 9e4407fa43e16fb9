#include "runtime/recall.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/host_tail.h"

namespace hayloft::runtime {
namespace {

float dot(const float* q, const f16* k, int d) {
  float sum = 0;
  for (int i = 0; i < d; ++i) sum += q[i] * to_float(k[i]);
  return sum;
}

bool attended(const StepTrace& trace, int list, std::int64_t position) {
  for (const auto& range : trace.ranges) {
    if (position >= range.begin && position < range.end) return true;
  }
  if (trace.lists == 0) return false;
  const auto first = trace.positions.begin() + static_cast<std::ptrdiff_t>(list) * trace.k;
  return std::binary_search(first, first + trace.k, position);
}

struct Candidate {
  double score;
  std::int64_t position;
};

}  // namespace

double recall(gpu::Backend& backend, const gpu::CacheView& cache, const float* q_device, int query_heads,
              const StepTrace& trace, std::int64_t k, index::SelectPer per) {
  const int d = cache.head_dim;
  const int g = query_heads / cache.kv_heads;
  const std::int64_t tail_tokens = cache.tail.tokens;
  k = std::min(k, cache.tokens());
  std::vector<float> q(static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(d));
  backend.to_host(q.data(), q_device, q.size() * sizeof(float), backend.stream());
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (float& x : q) x *= scale;

  // The tail's exact logits, and the softmax state that the search over the store continues.
  const HostTail tail_rows(backend, cache, backend.stream());
  TailScores tail = score_tail(tail_rows, q.data(), query_heads, backend.threads());
  std::vector<float>& max = tail.max;
  std::vector<float>& sum = tail.sum;

  const int lists = per == index::SelectPer::kv_head ? cache.kv_heads : query_heads;
  const int from_store = static_cast<int>(std::min(k, cache.store.tokens));
  std::vector<std::int32_t> positions(static_cast<std::size_t>(lists) * static_cast<std::size_t>(from_store));
  if (from_store > 0) {
    std::vector<std::int32_t> components(static_cast<std::size_t>(cache.kv_heads) * static_cast<std::size_t>(d));
    for (int head = 0; head < cache.kv_heads; ++head) {
      std::iota(components.begin() + head * d, components.begin() + (head + 1) * d, 0);
    }
    std::vector<float> mass(static_cast<std::size_t>(query_heads));
    index::ColumnSearch search{query_heads,        d,          components.data(),         q.data(),
                               cache.store.tokens, from_store, index::GroupRule::softmax, per};
    index::search_columns(cache.store, search, backend.threads(),
                          {positions.data(), max.data(), sum.data(), mass.data()});
  }

  std::int64_t caught = 0;
  std::vector<Candidate> candidates;
  for (int list = 0; list < lists; ++list) {
    const int head = per == index::SelectPer::kv_head ? list : list / g;
    const int first_query = per == index::SelectPer::kv_head ? list * g : list;
    const int queries = per == index::SelectPer::kv_head ? g : 1;
    // What the truth ranks by, from the g logits of a position.
    auto score = [&](auto logit) {
      if (queries == 1) return static_cast<double>(logit(first_query));
      double total = 0;
      for (int h = first_query; h < first_query + queries; ++h) total += std::exp(logit(h) - max[h]) / sum[h];
      return total;
    };
    candidates.clear();
    for (int i = 0; i < from_store; ++i) {
      const std::int64_t position = positions[static_cast<std::size_t>(list * from_store + i)];
      const f16* row = cache.store.row(head, position);
      candidates.push_back({score([&](int h) { return dot(q.data() + h * d, row, d); }), position});
    }
    for (std::int64_t t = 0; t < tail_tokens; ++t) {
      candidates.push_back({score([&](int h) { return tail.logits[static_cast<std::size_t>(h * tail_tokens + t)]; }),
                            cache.tail.position + t});
    }
    const auto kth = candidates.begin() + k;
    std::partial_sort(candidates.begin(), kth, candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.score != b.score ? a.score > b.score : a.position < b.position;
    });
    caught +=
        std::count_if(candidates.begin(), kth, [&](const Candidate& c) { return attended(trace, list, c.position); });
  }
  return static_cast<double>(caught) / (static_cast<double>(k) * lists);
}

}  // namespace hayloft::runtime
