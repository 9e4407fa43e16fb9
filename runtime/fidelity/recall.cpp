#include "runtime/fidelity/recall.h"

#include <numeric>
#include <vector>

#include "runtime/fidelity/ranking.h"

namespace hayloft::runtime {

double recall(gpu::Backend& backend, const gpu::CacheView& cache, const float* q_device, int query_heads,
              const StepTrace& trace, std::int64_t k, index::SelectPer per) {
  std::vector<float> q(static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(cache.head_dim));
  backend.to_host(q.data(), q_device, q.size() * sizeof(float), backend.stream());
  const HostTail tail(backend, cache, backend.stream());
  const StepQuery step{cache.store, tail, q.data(), query_heads};
  const std::vector<double> lists =
      recall_of(rank_positions(step, exact_scores(step), k, per, backend.threads()), trace);
  return std::accumulate(lists.begin(), lists.end(), 0.0) / static_cast<double>(lists.size());
}

}  // namespace hayloft::runtime
