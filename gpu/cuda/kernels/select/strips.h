#pragma once

#include <cstdint>

#include "gpu/cuda/context.h"
#include "gpu/cuda_memory.h"

// Selection without all logits. A strip is 32 tokens; the scan writes its largest logits in place of all of them, from
// which each strip has an upper and a lower bound of its best score. A strip whose upper bound lies below the k-th
// largest lower bound has none of the k best. The others are listed, scored again and ranked as if they were all there
// is: what is selected is the same, to the bit, and where the bounds say nothing every strip is listed.
namespace hayloft::gpu::cuda {

inline constexpr int kStripTokens = cuda_strip_tokens;  // that four lanes of a scan score
inline std::int64_t strips_of(std::int64_t tokens) {
  return (tokens + kStripTokens - 1) / kStripTokens;
}

// The strips that a list has keys and logits of, where it does not have all: those of a strip lie at kStripTokens times
// its place among the strips.
struct Strips {
  std::int32_t* listed = nullptr;  // [lists][stride], ascending; null: every list has all
  std::int32_t* counts = nullptr;  // [lists] strips
  std::int32_t* limits = nullptr;  // [lists] where the list has the position SparqSelect::limit, or would
  std::int64_t stride = 0;

  // The position of what a list has at `at`.
  __device__ std::int32_t position(int list, std::int32_t at) const {
    return listed ? listed[list * stride + at / kStripTokens] * kStripTokens + at % kStripTokens : at;
  }
};

struct HeadSoftmax;

// The memory of the bounds and what is made of them, for up to `heads` KV heads of `group` query heads.
class StripBounds {
 public:
  // sums: scores are sums of logits, whose largest is a strip's bound; else sums of softmaxes.
  StripBounds(const Context& context, int heads, int group, bool sums, std::int64_t tokens, int k, cudaStream_t stream);

  float* max() const { return max_; }  // ColumnScan::strip_max
  std::int64_t stride() const { return stride_; }
  bool sums() const { return sums_; }
  std::int32_t* places() const { return places_; }  // [heads][k]

  // Queues what lists, for so many lists, the strips that may have one of the k best below the limit, and all at and
  // behind it. The softmaxes are those of the lists' query heads; at least k whole strips lie below the limit.
  // counters: [lists], 0 before.
  Strips list(const HeadSoftmax* softmax, int lists, int k, std::int64_t limit, unsigned* counters) const;

 private:
  const Context& context_;
  cudaStream_t stream_;
  int group_;
  bool sums_;
  std::int64_t strips_;  // of the store
  std::int64_t stride_;  // those up to the last chunk's end
  Scratch<float> max_;
  Scratch<unsigned> bounds_;      // [2][heads][stride]: lower, upper
  Scratch<std::int32_t> listed_;  // [heads][stride], then counts and limits, [heads] each
  Scratch<std::int32_t> places_;
  int heads_;
};

}  // namespace hayloft::gpu::cuda
