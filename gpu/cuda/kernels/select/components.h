#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/memory/column_source.h"

// What the approximate scores of SparQ (arXiv 2312.04985, section 4) need besides the columns: which of them, with
// which weights, and the tail's part of the softmax. index/scan/sparq_query.h has the same for the host.
namespace hayloft::gpu::cuda {

// For q f32 [Hq][d]: components out i32 [Hkv][r], ascending, those with the largest sum over the group of |q|, added up
// in the order of the query heads, ties to the smaller index; weights out f32 [Hq][r], q / tau at the components, tau
// as Temperature says, 1 where that is zero. With r = d those are all components and q / sqrt(d), whatever it says.
void choose_components(const float* q, int kv_heads, int group, int head_dim, int rank, index::Temperature temperature,
                       std::int32_t* components, float* weights, cudaStream_t stream);

// A softmax in parts: for each query head and chunk of kChunkTokens tokens the largest logit
// and the sum of exp(s - that), f32 [.][stride].
struct PartialSoftmax {
  float* max = nullptr;
  float* sum = nullptr;
  std::int64_t stride = 0;
};

// The tail's chunks, for the query heads of KV heads [first, first + heads), whose partials begin with query
// head `first * group`. components and weights are those of all heads.
void sum_tail(const TailView& tail, int head_dim, const std::int32_t* components, const float* weights, int rank,
              int group, int first, int heads, const PartialSoftmax& partials, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
