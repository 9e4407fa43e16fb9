#pragma once

#include <cstdint>

#include "gpu/backend.h"

namespace hayloft::gpu {

// SparQ's choice of components for one KV head: the `rank` components with the largest sum over the group of |q|, ties
// to the smaller index, ascending. q f32 [g][d], components out i32 [rank].
void sparq_components(const float* q, int queries, int head_dim, int rank, std::int32_t* components);

// Backend::top_values.
void top_values_cpu(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values);

// SparQ's softmax temperature for one query head. By Temperature::coverage the approximate logits q[i1] . K[i1] / tau
// have about the spread of q . K / sqrt(d); it is 1 where it would be zero (then every logit is zero).
float sparq_temperature(const float* q, int head_dim, const std::int32_t* components, int rank,
                        Temperature temperature = Temperature::coverage);

// Backend::select_sparq and Backend::select_exact.
void select_sparq_cpu(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                      std::int32_t* positions, float* alpha, const offload::Threads& threads);
void select_exact_cpu(const CacheView& cache, const float* q, int query_heads, const ExactSelect& args,
                      std::int32_t* positions, const offload::Threads& threads);

// The softmax of q . K / sqrt(d) over the tail, for each query head its largest logit and the sum of exp(s - max): all
// that select_exact needs of the tail, and only where this is true.
inline bool needs_tail_softmax(const ExactSelect& args) {
  return args.k > 0 && args.per == index::SelectPer::kv_head && args.rule == index::GroupRule::softmax && !args.faiss;
}

// Backend::select_exact with everything in host memory, for a device that has computed what it needs of the tail:
// tail_max and tail_sum [Hq] where needs_tail_softmax(), else null. They are overwritten.
void search_exact(const offload::LayerView& store, const float* q, int query_heads, const ExactSelect& args,
                  float* tail_max, float* tail_sum, std::int32_t* positions, const offload::Threads& threads);

}  // namespace hayloft::gpu
