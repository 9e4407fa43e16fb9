#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/select/place_runs.h"
#include "gpu/cuda/memory/column_source.h"

// Prepares what the approximate scores of SparQ (arXiv 2312.04985, section 4) need besides the columns: which of them,
// with which weights, and the tail's part of the softmax. index/scan/sparq_query.h has the same for the host.
namespace hayloft::gpu::cuda {

struct ComponentChoice {
  int rank = 0;                   // r; of planes as many components as they may need, index::plane_rank()
  int bits = 0;                   // planes of a KV head; 0: whole components
  const float* spread = nullptr;  // f32 [Hkv][d], on the device; null: components are ordered by q alone
  index::Temperature temperature = index::Temperature::coverage;
  std::int32_t* left = nullptr;  // i32 [Hkv][r], where the components are left besides; may be null
  unsigned* stop = nullptr;      // set to 1 at once; may be null
};

// Says which words are set to zero besides.
struct Cleared {
  unsigned* words = nullptr;
  int count = 0;
};

// A softmax in parts: for each query head and chunk of kChunkTokens tokens the largest logit
// and the sum of exp(s - that), f32 [.][stride].
struct PartialSoftmax {
  float* max = nullptr;
  float* sum = nullptr;
  std::int64_t stride = 0;
};

// The tail's part of a softmax, for the query heads of the first KV heads, as sum_tail() has it.
struct TailScores {
  TailView tail;
  int heads = 0;  // KV heads; 0: nothing is scored
  PartialSoftmax partials;
};

// For q f32 [Hq][d]: components out i32 [Hkv][r], as index::sparq_components() orders them, or where there are bits
// index::plane_components(), to the bit, and then planes out i32 [Hkv][r]; weights out f32 [Hq][r], q / tau at the
// components, 0 at those of which no plane is read; tau as Temperature says for the others, 1 where that is zero. With
// r = d whole components those are all and q / sqrt(d), whatever it says. Returns whether the tail has been scored
// besides, as wanted, which groups of very many query heads and components leave to sum_tail(). Places what has been
// chosen of whole components, if that is wanted, by up to `place_blocks` blocks of threads for a KV head.
bool choose_components(const float* q, int kv_heads, int group, int head_dim, const ComponentChoice& choice,
                       const TailScores& tail, std::int32_t* components, std::int32_t* planes, float* weights,
                       cudaStream_t stream, const RunPlacing& placing = {}, int place_blocks = 1,
                       const Cleared& cleared = {});

// The tail's chunks, for the query heads of KV heads [first, first + heads), whose partials begin with query
// head `first * group`. components and weights are those of all heads.
void sum_tail(const TailView& tail, int head_dim, const std::int32_t* components, const float* weights, int rank,
              int group, int first, int heads, const PartialSoftmax& partials, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
