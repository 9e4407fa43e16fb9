#include "runtime/cluster/merge.h"

#include <algorithm>

#include "gpu/attention_state.h"

namespace hayloft::runtime::cluster {

void merge_attention(Communicator& ranks, const AttentionParts& own, const offload::Threads& threads, float* out) {
  const std::size_t size = own.values.size();
  std::vector<float> all(size * static_cast<std::size_t>(ranks.ranks()));
  ranks.all_gather(Traffic::attention, std::as_bytes(std::span(own.values)), std::as_writable_bytes(std::span(all)));
  const std::int64_t d = own.head_dim;
  threads.parallel_for(own.queries, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t query = begin; query < end; ++query) {
      float* const y = out + query * d;
      std::fill_n(y, d, 0.0f);
      gpu::AttentionState merged{y};
      for (int rank = 0; rank < ranks.ranks(); ++rank) {
        float* const weighted = all.data() + static_cast<std::size_t>(rank) * size;
        const float* const max = weighted + own.queries * d;
        gpu::merge_states(merged, {weighted + query * d, max[query], max[own.queries + query]}, own.head_dim);
      }
      gpu::finish_state(merged, own.head_dim, y);
    }
  });
}

}  // namespace hayloft::runtime::cluster
