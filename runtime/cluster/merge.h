#pragma once

#include <cstdint>
#include <vector>

#include "offload/host/threads.h"
#include "runtime/peers/communicator.h"

namespace hayloft::runtime::cluster {

// Attention of some query heads, each over the part of the positions that a rank has: gpu::AttentionState of each.
struct AttentionParts {
  AttentionParts(std::int64_t queries_, int head_dim_)
      : queries(queries_), head_dim(head_dim_), values(static_cast<std::size_t>(queries * (head_dim + 2))) {}

  // Returns the bytes of what a rank gives to the others.
  static std::uint64_t bytes(std::int64_t queries, int head_dim) {
    return static_cast<std::uint64_t>(queries) * static_cast<std::uint64_t>(head_dim + 2) * sizeof(float);
  }
  float* weighted() { return values.data(); }
  float* max() { return weighted() + queries * head_dim; }
  float* sum() { return max() + queries; }

  std::int64_t queries;  // tokens times query heads
  int head_dim;
  std::vector<float> values;  // weighted [queries][d], max [queries], sum [queries]
};

// The attention over the parts of all ranks, f32 [queries][d] in host memory: merged in the order of the ranks, and so
// the same to the bit on all of them. One all-gather.
void merge_attention(Communicator& ranks, const AttentionParts& own, const offload::Threads& threads, float* out);

}  // namespace hayloft::runtime::cluster
