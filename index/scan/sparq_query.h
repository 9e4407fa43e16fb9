#pragma once

#include <cstdint>

// What SparQ's step 1 (arXiv 2312.04985, section 4) makes of a query: which components it keeps, and what their logits
// are divided by.
namespace hayloft::index {

// What the approximate logits of SparQ are divided by (its figure 7b): tau = sqrt(d * |q[i1]|_1 / |q|_1), the share of
// q that the chosen components cover; sqrt(d), as if they were all; sqrt(r), as if they were any.
enum class Temperature : std::uint8_t { coverage, head_dim, rank };

// The components of one KV head: the `rank` ones with the largest sum over the group of |q|, ties to the smaller index,
// ascending. q f32 [g][d], components out i32 [rank].
void sparq_components(const float* q, int queries, int head_dim, int rank, std::int32_t* components);

// tau of one query head, q f32 [d]. By Temperature::coverage the approximate logits q[i1] . K[i1] / tau have about the
// spread of q . K / sqrt(d); it is 1 where it would be zero (then every logit is zero).
float sparq_temperature(const float* q, int head_dim, const std::int32_t* components, int rank,
                        Temperature temperature = Temperature::coverage);

}  // namespace hayloft::index
