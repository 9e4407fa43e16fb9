#include "runtime/attention/host_tail.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "index/scan/exact_search.h"
#include "index/scan/softmax.h"

namespace hayloft::runtime {

std::vector<float> copy_to_host(gpu::Backend& backend, const float* values, std::int64_t count, gpu::Stream stream) {
  std::vector<float> copy(static_cast<std::size_t>(count));
  backend.to_host(copy.data(), values, copy.size() * sizeof(float), stream);
  return copy;
}

HostTail::HostTail(gpu::Backend& backend, const gpu::CacheView& cache, gpu::Stream stream, std::int64_t newest)
    : layout_(std::make_unique<offload::BlockLayout>()),
      tokens_(std::min(newest, cache.tail.tokens)),
      first_(cache.tokens() - tokens_) {
  const std::int64_t row = 2 * cache.head_dim;
  // Not zeroed first: it is megabytes, at every step.
  memory_ = std::make_unique_for_overwrite<f16[]>(static_cast<std::size_t>(cache.kv_heads * tokens_ * row));
  layout_->kv_heads = cache.kv_heads;
  layout_->head_dim = cache.head_dim;
  layout_->block_tokens =
      static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(64, tokens_))));
  layout_->row_bytes = static_cast<std::uint64_t>(row) * sizeof(f16);
  layout_->head_bytes = layout_->row_bytes * static_cast<std::uint64_t>(tokens_);
  layout_->block_bytes = layout_->head_bytes * static_cast<std::uint64_t>(cache.kv_heads);
  block_ = reinterpret_cast<const std::byte*>(memory_.get());
  const std::int64_t slot = cache.tail.first + cache.tail.tokens - tokens_;
  for (int head = 0; head < cache.kv_heads && tokens_ > 0; ++head) {
    backend.to_host(memory_.get() + head * tokens_ * row, cache.tail.rows + (head * cache.tail.capacity + slot) * row,
                    layout_->head_bytes, stream);
  }
}

std::vector<float> sinks_on_host(gpu::Backend& backend, const gpu::CacheView& cache, int query_heads,
                                 gpu::Stream stream) {
  if (cache.sinks == nullptr) return {};
  return copy_to_host(backend, cache.sinks, query_heads, stream);
}

void add_sinks(const std::vector<float>& sinks, std::vector<float>& max, std::vector<float>& sum) {
  for (std::size_t h = 0; h < sinks.size(); ++h) index::merge_sums(max[h], sum[h], sinks[h], 1);
}

TailScores score_tail(const HostTail& tail, const float* weights, int query_heads, const offload::Threads& threads) {
  const offload::LayerView view = tail.rows();
  const int d = view.layout->head_dim;
  const int group = query_heads / view.layout->kv_heads;
  TailScores scores;
  scores.tokens = tail.tokens();
  scores.logits.resize(static_cast<std::size_t>(query_heads * scores.tokens));
  scores.max.assign(static_cast<std::size_t>(query_heads), -std::numeric_limits<float>::infinity());
  scores.sum.assign(static_cast<std::size_t>(query_heads), 0.0f);
  if (scores.tokens == 0) return scores;

  const std::vector<std::int32_t> components = index::every_component(view.layout->kv_heads, d);
  index::ColumnSearch search;
  search.query_heads = query_heads;
  search.rank = d;
  search.components = components.data();
  search.weights = weights;
  search.keys = index::KeySource::rows;
  threads.parallel_for(view.layout->kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      float* const logits = scores.logits.data() + head * group * scores.tokens;
      index::score_columns(view, search, static_cast<int>(head), 0, scores.tokens, logits);
      for (int h = 0; h < group; ++h) {
        const float* const row = logits + h * scores.tokens;
        const auto at = static_cast<std::size_t>(head * group + h);
        const float max = *std::max_element(row, row + scores.tokens);
        double sum = 0;
        for (std::int64_t t = 0; t < scores.tokens; ++t) sum += std::exp(row[t] - max);
        scores.max[at] = max;
        scores.sum[at] = static_cast<float>(sum);
      }
    }
  });
  return scores;
}

}  // namespace hayloft::runtime
