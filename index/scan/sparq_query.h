#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/ranking_options.h"
#include "offload/store/layout.h"
#include "offload/store/store.h"

// SparQ's step 1 (arXiv 2312.04985, section 4), as far as the query decides: which components it keeps, and what their
// logits are divided by.
namespace hayloft::index {

// Throws Error unless the columns are planes.
void require_planes(offload::ColumnFormat columns);

// Step 1 of one decode query, for every KV head. Every caller that is not a kernel takes it from here.
struct SparqQuery {
  int rank = 0;                          // RankingOptions::components()
  std::vector<std::int32_t> components;  // [Hkv][rank]
  std::vector<std::uint8_t> planes;      // [Hkv][rank], how many are read of each; empty: whole components
  std::vector<float> weights;            // [Hq][rank], q / tau at the components; 0 where no plane is read

  // The weights at their components, zero elsewhere: out f32 [Hq][stride], of which [0, d) of a row are written. Their
  // products with whole keys are the approximate logits.
  void spread_out(int kv_heads, int query_heads, int head_dim, int stride, float* out) const;
};
// q f32 [Hq][d] in host memory; of `store` the shape, and the spread where the options need it. Throws Error where its
// columns are not what they need, and where the rank is not 1 to d or the query heads are no multiple of the KV heads.
SparqQuery sparq_query(const float* q, int query_heads, int kv_heads, int head_dim, const offload::LayerView& store,
                       const RankingOptions& options);

// The components of one KV head: the `rank` ones that matter most, ties to the smaller index, ascending. q f32 [g][d],
// spread f32 [d] or null for ComponentOrder::q, components out i32 [rank].
void sparq_components(const float* q, int queries, int head_dim, const float* spread, int rank,
                      std::int32_t* components);

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
