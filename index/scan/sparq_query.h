#pragma once

#include <cstdint>

#include "offload/store/layout.h"

// What SparQ's step 1 (arXiv 2312.04985, section 4) makes of a query: which components it keeps, and what their logits
// are divided by.
namespace hayloft::index {

// What the approximate logits of SparQ are divided by (its figure 7b): tau = sqrt(d * |q[i1]|_1 / |q|_1), the share of
// q that the chosen components cover; sqrt(d), as if they were all; sqrt(r), as if they were any.
enum class Temperature : std::uint8_t { coverage, head_dim, rank };

// Throws Error unless the columns are planes.
void require_planes(offload::ColumnFormat columns);

// How much a component matters to a KV head: |q| summed over the group, in the order of the query heads, in f32; or
// that times the spread of K in the component (LayerView::spread).
enum class ComponentOrder : std::uint8_t { q, qk };

// The components of one KV head: the `rank` ones that matter most, ties to the smaller index, ascending. q f32 [g][d],
// spread f32 [d] or null for ComponentOrder::q, components out i32 [rank].
void sparq_components(const float* q, int queries, int head_dim, const float* spread, int rank,
                      std::int32_t* components);

// As many components as a head may need of which `bits` planes are read in all.
constexpr int plane_rank(int head_dim, int bits) {
  return bits < head_dim ? bits : head_dim;
}

// Which planes a KV head reads (after Fathom, arXiv 2609.17652). The p-th further plane of a component that matters by
// m = |q| x spread is worth m / 2^p, by which it halves the largest error of its part of a score: the `bits` planes
// that are worth most are read, ties to the smaller component. Values are compared as the bits of f32 numbers without
// sign, so that NaN has its place too. components and planes out [plane_rank(d, bits)]: those of which planes are read,
// more planes before fewer, then the smaller component; behind them components of which none is read, planes 0.
void plane_components(const float* q, int queries, int head_dim, const float* spread, int bits,
                      std::int32_t* components, std::uint8_t* planes);

// tau of one query head, q f32 [d]. By Temperature::coverage the approximate logits q[i1] . K[i1] / tau have about the
// spread of q . K / sqrt(d); it is 1 where it would be zero (then every logit is zero).
float sparq_temperature(const float* q, int head_dim, const std::int32_t* components, int rank,
                        Temperature temperature = Temperature::coverage);

}  // namespace hayloft::index
