#include "runtime/cache/cache.h"

// The sums of V over the blocks of all ranks, which each rank adds up as blocks leave its tail.
namespace hayloft::runtime {

// What fill_block() makes of V in the blocks that the tail fills, to the bit, whoever's they are.
void Cache::sum_filled(Tail& tail) const {
  const auto d = static_cast<std::size_t>(head_dim_);
  const auto B = static_cast<std::size_t>(options_.block_tokens);
  tail.filled_sums.clear();
  std::vector<f16> rows(B * 2 * d);
  for (std::int64_t block = 0; block < tail.filled; ++block) {
    for (int head = 0; head < kv_heads_; ++head) {
      const std::int64_t slot = head * tail.capacity + tail.first + block * options_.block_tokens;
      backend_->to_host(rows.data(), tail.rows.as<f16>() + slot * 2 * head_dim_, rows.size() * sizeof(f16),
                        backend_->stream());
      std::vector<double> sum(d);
      for (std::size_t t = 0; t < B; ++t) {
        for (std::size_t i = 0; i < d; ++i) sum[i] += static_cast<double>(to_float(rows[(2 * t + 1) * d + i]));
      }
      for (const double x : sum) tail.filled_sums.push_back(static_cast<float>(x));
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
}

}  // namespace hayloft::runtime
