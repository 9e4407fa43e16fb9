#include "index/subtile_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/column_kernels.h"

namespace hayloft::index {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Two computations of one softmax score differ by the errors of exp_sums (1.1e-5 at |x| = 87, twice), of adding the
// group (2^-24 for each query head, twice) and of scaling: together less than this for any group up to 500.
constexpr float margin = 1e-4f;
// Just above exp(-87), below which exp_sums does not go.
constexpr float exp_floor = 1.7e-38f;

}  // namespace

SubtileBounds::SubtileBounds(const ColumnScan& scan, GroupRule rule, int first, int heads,
                             std::span<const double> log_sums, std::int64_t limit)
    : subtiles_((limit + subtile_tokens - 1) / subtile_tokens) {
  const auto count = static_cast<std::size_t>(subtiles_);
  const float* head_maxima = scan.head_maxima.get() + first * scan.subtile_stride;
  if (heads == 1) {
    lower_ = upper_ = {head_maxima, count};
  } else if (rule == GroupRule::logits) {
    lower_ = upper_ = {scan.group_maxima.get() + first / scan.group * scan.subtile_stride, count};
  } else {
    choose_offsets(scan, first, log_sums);
    lower_store_ = hwy::AllocateAligned<float>(static_cast<std::size_t>(scan.subtile_stride));
    upper_store_ = hwy::AllocateAligned<float>(static_cast<std::size_t>(scan.subtile_stride));
    softmax_bounds(head_maxima, scan.subtile_stride, heads, subtiles_, offsets_.data(), lower_store_.get(),
                   upper_store_.get());
    bound_by_group(scan, first, heads);
    lower_ = {lower_store_.get(), count};
    upper_ = {upper_store_.get(), count};
  }
}

// The softmax of query head h is exp(s - log_sums[h]). All of the group are scaled by one factor that brings the
// largest near 1: the order stays, and nothing underflows only because what dominates lies outside the store or past
// the limit.
void SubtileBounds::choose_offsets(const ColumnScan& scan, int first, std::span<const double> log_sums) {
  double top = -infinity;
  for (std::size_t h = 0; h < log_sums.size(); ++h) {
    const float* maxima = scan.head_maxima.get() + (first + static_cast<int>(h)) * scan.subtile_stride;
    top = std::max(top, *std::max_element(maxima, maxima + subtiles_) - log_sums[h]);
  }
  for (const double log_sum : log_sums) offsets_.push_back(static_cast<float>(log_sum + top));
}

// The maxima of single heads bound a sum only within a factor of the group's size. The scan's maxima of sums over the
// group are closer, for weights ratio[h] = exp(reference[h] - offset[h]) that are nearly the same for all h where the
// guess was good: the score is between the smallest and the largest ratio times the scan's sum.
void SubtileBounds::bound_by_group(const ColumnScan& scan, int first, int heads) {
  const float* sums = scan.group_maxima.get() + first / scan.group * scan.subtile_stride;
  const float floor = exp_floor * static_cast<float>(heads);
  const auto ratio = [&](int h, float reference) {
    return static_cast<float>(std::exp(static_cast<double>(reference) - offsets_[static_cast<std::size_t>(h)]));
  };
  std::vector<float> usual;
  for (int h = 0; h < heads; ++h) usual.push_back(ratio(h, scan.guesses[static_cast<std::size_t>(first + h)]));

  const std::int64_t per_tile = scan.tile / subtile_tokens;
  for (std::int64_t i = 0, tile = 0; i < subtiles_; ++tile) {
    float least = infinity;
    float most = 0;
    for (int h = 0; h < heads; ++h) {
      const float reference = scan.tile_references[static_cast<std::size_t>((first + h) * scan.tiles + tile)];
      const bool guessed = reference == scan.guesses[static_cast<std::size_t>(first + h)];
      const float r = guessed ? usual[static_cast<std::size_t>(h)] : ratio(h, reference);
      least = std::min(least, r);
      most = std::max(most, r);
    }
    for (const std::int64_t end = std::min(i + per_tile, subtiles_); i < end; ++i) {
      const float low =
          std::max(lower_store_[static_cast<std::size_t>(i)] * (1 - margin), (sums[i] * (1 - margin) - floor) * least);
      const float high = std::min(upper_store_[static_cast<std::size_t>(i)], sums[i] * most) * (1 + margin) + floor;
      lower_store_[static_cast<std::size_t>(i)] = low;
      upper_store_[static_cast<std::size_t>(i)] = high;
    }
  }
}

}  // namespace hayloft::index
