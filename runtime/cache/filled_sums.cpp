#include <algorithm>

#include "offload/store/planes.h"
#include "runtime/cache/cache.h"

// The sums of V over the blocks of all ranks, and of the half-widths of K's ranges, which each rank adds up as blocks
// leave its tail.
namespace hayloft::runtime {
namespace {

// Computes what offload::add_spread() makes of K in a block of rows [B][2 d], of one head: the half-widths are f16 and
// add up exactly, in whatever order.
void add_spread_of(const std::vector<f16>& rows, int d, int group_tokens, double* spread) {
  const auto B = static_cast<int>(rows.size()) / (2 * d);
  for (int first = 0; first < B; first += group_tokens) {
    for (int c = 0; c < d; ++c) {
      float lo = std::numeric_limits<float>::infinity(), hi = -lo;
      for (int t = first; t < first + group_tokens; ++t) {
        const float key = to_float(offload::finite(rows[static_cast<std::size_t>(2 * t * d + c)]));
        lo = std::min(lo, key);
        hi = std::max(hi, key);
      }
      spread[c] += static_cast<double>(to_float(offload::plane_range(lo, hi).half));
    }
  }
}

}  // namespace

// Computes what fill_block() makes of V in the blocks that the tail fills, to the bit, whoever's they are.
void Cache::sum_filled(Tail& tail) const {
  if (tail.exact_sum.empty()) return;  // the store of a cache alone has them
  const int head_dim = tail.heads.dim;
  const auto d = static_cast<std::size_t>(head_dim);
  const auto B = static_cast<std::size_t>(options_.block_tokens);
  tail.filled_sums.clear();
  tail.filled_spread.assign(tail.exact_spread.size(), 0.0);
  const int group_tokens = offload::tokens_per_scale(options_.columns, options_.block_tokens);
  std::vector<f16> rows(B * 2 * d);
  for (std::int64_t block = 0; block < tail.filled; ++block) {
    for (int head = 0; head < tail.heads.kv; ++head) {
      const std::int64_t slot = head * tail.capacity + tail.first + block * options_.block_tokens;
      backend_->to_host(rows.data(), tail.rows.as<f16>() + slot * 2 * head_dim, rows.size() * sizeof(f16),
                        backend_->stream());
      std::vector<double> sum(d);
      for (std::size_t t = 0; t < B; ++t) {
        for (std::size_t i = 0; i < d; ++i) sum[i] += static_cast<double>(to_float(rows[(2 * t + 1) * d + i]));
      }
      for (const double x : sum) tail.filled_sums.push_back(static_cast<float>(x));
      if (tail.exact_spread.empty()) continue;
      add_spread_of(rows, head_dim, group_tokens, tail.filled_spread.data() + head * head_dim);
    }
  }
}

void Cache::take_filled_sums(Tail& tail) {
  if (tail.exact_sum.empty()) return;
  const std::size_t sums = tail.exact_sum.size();
  for (std::size_t i = 0; i < static_cast<std::size_t>(tail.filled) * sums; ++i) {
    tail.exact_sum[i % sums] += static_cast<double>(tail.filled_sums[i]);
  }
  for (std::size_t i = 0; i < sums; ++i) tail.value_sum[i] = static_cast<float>(tail.exact_sum[i]);
  if (tail.filled == 0) return;
  for (std::size_t i = 0; i < tail.exact_spread.size(); ++i) {
    tail.exact_spread[i] += tail.filled_spread[i];
    tail.spread[i] = static_cast<float>(tail.exact_spread[i]);
  }
}

}  // namespace hayloft::runtime
