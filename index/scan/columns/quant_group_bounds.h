#pragma once

#include <hwy/aligned_allocator.h>

#include <span>
#include <vector>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/columns/column_scan.h"

namespace hayloft::index {

// Bounds the quantisation groups of one list: no position of quantisation group i scores above upper()[i], and one
// position of it scores at least lower()[i]. Holds for scores as group_scores computes them, rounding included.
class QuantGroupBounds {
 public:
  // Query heads [first, first + heads): a whole group or a single one. log_sums [heads]: log-sum-exp of each over all
  // positions, needed by the softmax rule only. Covers the quantisation groups of positions [0, limit). Refers to the
  // scan.
  QuantGroupBounds(const ColumnScan& scan, GroupRule rule, int first, int heads, std::span<const double> log_sums,
                   std::int64_t limit);

  std::span<const float> lower() const { return lower_; }
  std::span<const float> upper() const { return upper_; }

  // Returns the values to subtract from the logits of each query head before exp, [heads]; empty unless the scores are
  // sums of softmaxes.
  std::span<const float> offsets() const { return offsets_; }

 private:
  void choose_offsets(const ColumnScan& scan, int first, std::span<const double> log_sums);
  std::vector<SoftmaxRatio> tile_ratios(const ColumnScan& scan, int first) const;

  std::span<const float> lower_;
  std::span<const float> upper_;
  std::vector<float> offsets_;
  hwy::AlignedFreeUniquePtr<float[]> lower_store_;
  hwy::AlignedFreeUniquePtr<float[]> upper_store_;
  std::int64_t quant_groups_;
};

}  // namespace hayloft::index
