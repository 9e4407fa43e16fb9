#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/device_options.h"
#include "gpu/sparse_choice.h"

// Counts how often the CUDA backend reads keys for sparse prefill: known here to the backend and to those who plan.
namespace hayloft::gpu {

inline constexpr int cuda_score_passes = 2;  // over the keys: for normalisers, and for masses

// Returns how many blocks of a prompt's queries choose their keys together, in a context of so many tokens. Each such
// lot reads all keys before it to score them, and to attend.
inline std::uint64_t cuda_lists_at_once(int kv_heads, int group, std::int64_t tokens, const SparseCausal& how,
                                        std::uint64_t mass_bytes = cuda_mass_bytes) {
  const int times = how.fidelity > 0 ? 2 : 1;  // queries that choose, and that stop the choice
  const auto sums = static_cast<std::uint64_t>((sparse_sampled_tokens * group + 15) / 16 * kv_heads * times);
  const auto blocks = static_cast<std::uint64_t>(std::max<std::int64_t>(1, tokens / sparse_key_block));
  const std::uint64_t bytes = sums * blocks * sizeof(float);
  return std::max<std::uint64_t>(1, mass_bytes / bytes);
}
// Returns how often it reads all rows of the store for a chunk of T tokens, the first of which sits at `first`.
inline int cuda_sparse_passes(int kv_heads, int group, std::int64_t first, int T, const SparseCausal& how) {
  const std::uint64_t at_once = cuda_lists_at_once(kv_heads, group, first + T, how);
  if (is_chosen_for(first, {}, how)) {  // and so for all behind
    const int most = sparse_block_tokens(group);
    const auto blocks = static_cast<std::uint64_t>((T + most - 1) / most);
    return static_cast<int>((blocks + at_once - 1) / at_once) * (cuda_score_passes + 1);
  }
  const std::vector<QueryBlock> queries = query_blocks(0, T, group);
  int passes = 0;
  for (std::size_t from = 0; from < queries.size(); from += at_once) {
    passes +=
        is_chosen_for(first, queries[std::min(queries.size(), from + at_once) - 1], how) ? cuda_score_passes + 1 : 1;
  }
  return passes;
}

}  // namespace hayloft::gpu
