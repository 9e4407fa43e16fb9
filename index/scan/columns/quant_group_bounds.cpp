#include "index/scan/columns/quant_group_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/softmax.h"

namespace hayloft::index {
QuantGroupBounds::QuantGroupBounds(const ColumnScan& scan, GroupRule rule, int first, int heads,
                                   std::span<const double> log_sums, std::int64_t limit)
    : quant_groups_((limit + quant_group_tokens - 1) / quant_group_tokens) {
  const auto count = static_cast<std::size_t>(quant_groups_);
  const float* head_maxima = scan.head_maxima + first * scan.quant_group_stride;
  if (heads == 1) {
    lower_ = upper_ = {head_maxima, count};
  } else if (rule == GroupRule::logits) {
    lower_ = upper_ = {scan.group_maxima + first / scan.group * scan.quant_group_stride, count};
  } else {
    choose_offsets(scan, first, log_sums);
    const std::vector<SoftmaxRatio> ratios = tile_ratios(scan, first);
    lower_store_ = hwy::AllocateAligned<float>(static_cast<std::size_t>(scan.quant_group_stride));
    upper_store_ = hwy::AllocateAligned<float>(static_cast<std::size_t>(scan.quant_group_stride));
    softmax_bounds(head_maxima, scan.quant_group_stride, heads,
                   scan.group_maxima + first / scan.group * scan.quant_group_stride, quant_groups_, offsets_.data(),
                   ratios.data(), scan.tile / quant_group_tokens, lower_store_.get(), upper_store_.get());
    lower_ = {lower_store_.get(), count};
    upper_ = {upper_store_.get(), count};
  }
}

// The softmax of query head h is exp(s - log_sums[h]). All of the group are scaled by one factor that brings the
// largest near 1: the order stays, and nothing underflows only because what dominates lies outside the store or past
// the limit.
void QuantGroupBounds::choose_offsets(const ColumnScan& scan, int first, std::span<const double> log_sums) {
  const std::int64_t per_tile = scan.tile / quant_group_tokens;
  const std::int64_t whole_tiles = quant_groups_ / per_tile;
  double top = -infinity;
  for (std::size_t h = 0; h < log_sums.size(); ++h) {
    const std::int64_t query_head = first + static_cast<std::int64_t>(h);
    const float* tiles = scan.tile_maxima + query_head * scan.tiles;
    const float* quant_groups = scan.head_maxima + query_head * scan.quant_group_stride;
    float max = -infinity;
    for (std::int64_t t = 0; t < whole_tiles; ++t) max = std::max(max, tiles[t]);
    for (std::int64_t i = whole_tiles * per_tile; i < quant_groups_; ++i) max = std::max(max, quant_groups[i]);
    top = std::max(top, max - log_sums[h]);
  }
  for (const double log_sum : log_sums) offsets_.push_back(static_cast<float>(log_sum + top));
}

// A tile noted sums of exp(s - reference[h]), the score is a sum of exp(s - offset[h]): the weights' ratios are
// exp(reference[h] - offset[h]), nearly the same for all h where the guess was good. That is what makes these bounds
// close; the maxima of single heads bound a sum only within a factor of the group's size.
std::vector<SoftmaxRatio> QuantGroupBounds::tile_ratios(const ColumnScan& scan, int first) const {
  const auto heads = static_cast<int>(offsets_.size());
  const auto ratio = [&](int h, float reference) {
    return static_cast<float>(std::exp(static_cast<double>(reference) - offsets_[static_cast<std::size_t>(h)]));
  };
  std::vector<float> usual;
  for (int h = 0; h < heads; ++h) usual.push_back(ratio(h, scan.guesses[static_cast<std::size_t>(first + h)]));
  std::vector<SoftmaxRatio> ratios;
  for (std::int64_t tile = 0; tile * scan.tile < quant_groups_ * quant_group_tokens; ++tile) {
    SoftmaxRatio range{infinity, 0};
    for (int h = 0; h < heads; ++h) {
      const float reference = scan.tile_references[static_cast<std::size_t>((first + h) * scan.tiles + tile)];
      const bool guessed = reference == scan.guesses[static_cast<std::size_t>(first + h)];
      const float r = guessed ? usual[static_cast<std::size_t>(h)] : ratio(h, reference);
      range.least = std::min(range.least, r);
      range.most = std::max(range.most, r);
    }
    ratios.push_back(range);
  }
  return ratios;
}

}  // namespace hayloft::index
