#pragma once

#include "gpu/cuda/context.h"
#include "gpu/cuda/kernels/select/alpha.cuh"
#include "gpu/cuda/kernels/select/components.h"
#include "gpu/cuda/kernels/select/top_positions.cuh"

namespace hayloft::gpu::cuda {

// The passes of top_positions.cuh in their order, with the memory they need: whoever makes the keys fills histogram(0)
// with their top bits, and select() does the rest.
class RadixSelect {
 public:
  // Has room for `lists` lists.
  RadixSelect(const Context& context, int lists, cudaStream_t stream);

  void clear();  // histograms and counters; before each selection
  Cleared cleared() const { return {zeroed_, static_cast<int>(zeroed(lists_))}; }  // for a kernel that does so
  unsigned* histogram(int level) const { return zeroed_ + static_cast<std::int64_t>(level) * lists_ * kBins; }
  // Returns what blocks count themselves by, [lists], for one launch: 0 is the passes' own, the others are for who
  // makes keys.
  unsigned* counters(int which) const { return histogram(kLevels) + static_cast<std::int64_t>(which) * lists_; }

  // Returns the grid for passes over the chunks of `lists` lists of `limit` keys: blocks enough to fill the device
  // several times, few enough that merging their histograms costs little.
  dim3 pass_grid(int lists, std::int64_t limit) const;

  // positions [lists][k], ascending; lists no more than there is memory for, k >= 1. Weighs them, if that is wanted.
  void select(const Keys& keys, int lists, int k, std::int32_t* positions, const Weighing& weighing = {});

 private:
  static constexpr int kCounters = 3;
  static std::int64_t zeroed(int lists) { return (std::int64_t{kLevels} * kBins + kCounters) * lists; }
  std::int64_t most_blocks() const;

  const Context& context_;
  cudaStream_t stream_;
  int lists_;
  Scratch<unsigned> zeroed_;   // histograms [kLevels][lists][kBins], then counters [kCounters][lists]
  Scratch<Cut> cuts_;          // [kLevels - 1][lists]
  Scratch<unsigned> reaches_;  // [lists][blocks of a pass][kLastBins + 1], as many as pass_grid() has
};

}  // namespace hayloft::gpu::cuda
