#pragma once

#include <cstdint>

#include "gpu/backend.h"

namespace hayloft::gpu {

// SparQ's choice of components for one KV head: the `rank` components with the largest sum over the group of |q|, ties
// to the smaller index, ascending. q f32 [g][d], components out i32 [rank].
void sparq_components(const float* q, int queries, int head_dim, int rank, std::int32_t* components);

// SparQ's softmax temperature for one query head: sqrt(d * |q[i1]|_1 / |q|_1), for which the approximate logits
// q[i1] . K[i1] / tau have about the spread of q . K / sqrt(d). 1 where it would be zero (then every logit is zero).
float sparq_temperature(const float* q, int head_dim, const std::int32_t* components, int rank);

// Backend::select_sparq and Backend::select_exact.
void select_sparq_cpu(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                      std::int32_t* positions, float* alpha, const offload::Threads& threads);
void select_exact_cpu(const CacheView& cache, const float* q, int query_heads, const ExactSelect& args,
                      std::int32_t* positions, const offload::Threads& threads);

}  // namespace hayloft::gpu
