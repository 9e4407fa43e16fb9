#pragma once

#include "gpu/cuda/context.h"
#include "gpu/cuda/kernels/select/top_positions.cuh"

namespace hayloft::gpu::cuda {

// The passes of top_positions.cuh in their order, with the memory they need: whoever makes the keys fills histogram(0)
// with their top bits, and select() does the rest.
class RadixSelect {
 public:
  // For up to `lists` lists with room for `chunk_stride` chunks each.
  RadixSelect(const Context& context, int lists, std::int64_t chunk_stride, cudaStream_t stream);

  void clear_histograms();
  unsigned* histogram(int level) const { return histograms_ + static_cast<std::int64_t>(level) * lists_ * kBins; }

  // Returns the grid for passes over the chunks of `lists` lists of `limit` keys: blocks enough to fill the device
  // several times, few enough that merging their histograms costs little.
  dim3 pass_grid(int lists, std::int64_t limit) const;

  // positions [lists][k], ascending; lists no more than there is memory for, k >= 1.
  void select(const Keys& keys, int lists, int k, std::int32_t* positions);

 private:
  std::int64_t most_blocks() const;

  const Context& context_;
  cudaStream_t stream_;
  int lists_;
  Scratch<Tally> tallies_;        // [lists][chunk_stride]
  Scratch<unsigned> histograms_;  // [kLevels][lists][kBins]
  Scratch<Cut> cuts_;             // [kLevels][lists]
  Scratch<Tally> of_blocks_;      // [lists][blocks of a pass], as many as pass_grid() has
};

}  // namespace hayloft::gpu::cuda
