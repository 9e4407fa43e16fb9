#include "runtime/fidelity/recall.h"

#include <numeric>
#include <vector>

#include "runtime/fidelity/ranking.h"

namespace hayloft::runtime {

double recall(gpu::Backend& backend, const gpu::CacheView& cache, const float* q_device, int query_heads,
              const StepTrace& trace, std::int64_t k, index::SelectPer per) {
  const std::int64_t count = std::int64_t{query_heads} * cache.head_dim;
  const std::vector<float> q = copy_to_host(backend, q_device, count, backend.stream());
  const HostTail tail(backend, cache, backend.stream());
  const StepQuery step{cache.store, tail, q.data(), query_heads};
  const std::vector<double> lists =
      recall_of(rank_positions(step, exact_scores(step), k, per, backend.threads()), trace);
  return std::accumulate(lists.begin(), lists.end(), 0.0) / static_cast<double>(lists.size());
}

}  // namespace hayloft::runtime
