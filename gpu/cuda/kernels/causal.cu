#include <algorithm>
#include <limits>

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/causal_states.cuh"
#include "gpu/cuda/kernels/causal_tile.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/memory/row_stream.h"
#include "index/scan/exact_search.h"

// Prefill's attention, by one kernel for what arrives of the keys at a time, with the states of all queries carried
// from one to the next. All g query heads of a KV head and all tokens are the rows of one matrix.
//
// Rounding. K and V are f16 as they are. The products run on tensor cores, which want queries and weights in f16 as
// well, and add up in f32:
//   - a query is scaled to use f16's range whatever its size, so that nothing overflows and every component is off by
//     at most 2^-11 of itself, or 2^-39 of the largest. A score is then off by 2^-11 sum |q_i k_i| / sqrt(d) at most;
//   - a weight is off by 2^-11 of itself, or 2^-40 of the largest; the normaliser adds up the rounded ones;
//   - of a sum tensor cores may lose 2^-11 (kSummedKeys), of the normaliser as of the weighted values.
// An output, the mean of values under these weights, is off by at most twice the sum of the three times the largest
// value; the errors are as good as independent, so that in practice it is far less.
namespace hayloft::gpu::cuda {
namespace {

// The oldest position that the cache still holds, and where the sinks end that a windowed query sees beside its window.
std::int64_t first_position(const CacheView& cache) {
  return cache.store.tokens > 0 ? 0 : cache.tail.position;
}
std::int64_t end_of_sinks(const CacheView& cache, const CausalWindow& window) {
  const std::int64_t oldest = first_position(cache);
  return window.window > 0 ? std::clamp(window.sinks, oldest, cache.tokens()) : oldest;
}

// T queries, the first at position `first`.
class CausalAttention {
 public:
  CausalAttention(const Context& context, const CacheView& cache, int T, int query_heads, std::int64_t first,
                  const CausalWindow& window, cudaStream_t stream)
      : context_(context),
        cache_(cache),
        tokens_(T),
        first_(first),
        window_(window.window),
        sinks_end_(end_of_sinks(cache, window)),
        stream_(stream),
        rows_(static_cast<std::int64_t>(T) * (query_heads / cache.kv_heads)),
        q_(context, cache.kv_heads * rows_ * cache.head_dim, stream),
        weighted_(context, cache.kv_heads * rows_ * cache.head_dim, stream),
        per_row_(context, 3 * cache.kv_heads * rows_, stream) {
    const std::int64_t rows = cache.kv_heads * rows_;
    float* const per_row = per_row_;
    states_ = {q_,
               per_row,
               weighted_,
               per_row + rows,
               per_row + 2 * rows,
               rows_,
               query_heads / cache.kv_heads,
               cache.head_dim};
  }

  void run(const float* q, const SoftmaxPart& partial, float* out) {
    const float scale = index::exact_scale(cache_.head_dim);
    launch("begin_causal", begin_causal, rows_shape(), stream_, states_, q, scale);
    const std::int64_t end = std::min(cache_.tokens(), first_ + tokens_);
    const std::int64_t lowest = window_ > 0 ? std::max(sinks_end_, first_ - window_ + 1) : sinks_end_;
    attend_span(first_position(cache_), sinks_end_);
    attend_span(lowest, end);
    launch("finish_causal", finish_causal, rows_shape(), stream_, states_, partial, cache_.sinks, out);
  }

 private:
  Shape rows_shape() const {
    return {dim3(blocks_for(rows_, kStateWarps), static_cast<unsigned>(cache_.kv_heads)), dim3(kStateThreads)};
  }

  // Positions [begin, end), all sinks or none: from the store through two buffers, from the tail in place.
  void attend_span(std::int64_t begin, std::int64_t end) {
    const std::int64_t stored = std::min(end, cache_.store.tokens);
    if (begin < stored) {
      RowStream rows(context_, cache_, cache_.kv_heads, stored - begin, stream_);
      rows.range(begin, stored,
                 [this](const DenseRows& chunk, std::int64_t from, std::int64_t to) { attend_keys(chunk, from, to); });
    }
    const TailView& tail = cache_.tail;
    const std::int64_t rest = std::max(begin, cache_.store.tokens);
    if (rest < end) attend_keys({tail.rows, tail.capacity, tail.first, tail.position}, rest, end);
  }

  void attend_keys(const DenseRows& rows, std::int64_t begin, std::int64_t end) {
    const int d = cache_.head_dim;
    CausalKeys keys;
    keys.rows = rows.rows + (rows.first + begin - rows.position) * 2 * d;
    keys.head_stride = rows.capacity * 2 * d;
    keys.begin = static_cast<int>(begin - first_);
    keys.end = static_cast<int>(end - first_);
    constexpr std::int64_t all = std::numeric_limits<int>::max();
    keys.window = static_cast<int>(window_ > 0 && begin >= sinks_end_ ? std::min(window_, all) : all);
    // As much as a block can have is about what its multiprocessor has.
    const bool wide = context_.block_shared_bytes > static_cast<int>(2 * CausalTile<128, true>::shared_bytes);
    if (d <= 64) return attend_keys<CausalTile<64, false>>(keys);
    if (d <= 96) return wide ? attend_keys<CausalTile<96, true>>(keys) : attend_keys<CausalTile<96, false>>(keys);
    if (d <= 128) return wide ? attend_keys<CausalTile<128, true>>(keys) : attend_keys<CausalTile<128, false>>(keys);
    wide ? attend_keys<CausalTile<256, true>>(keys) : attend_keys<CausalTile<256, false>>(keys);
  }

  template <class Tile>
  void attend_keys(const CausalKeys& keys) {
    const Shape shape{dim3(blocks_for(rows_, Tile::rows), static_cast<unsigned>(cache_.kv_heads)), dim3(kCausalThreads),
                      Tile::shared_bytes};
    if (shape.shared_bytes > 48 * 1024) allow_shared("attend_keys", cuda::attend_keys<Tile>, shape.shared_bytes);
    launch("attend_keys", cuda::attend_keys<Tile>, shape, stream_, states_, keys);
  }

  const Context& context_;
  const CacheView& cache_;
  int tokens_;
  std::int64_t first_;      // position of the first query
  std::int64_t window_;     // 0: every position up to the query's own
  std::int64_t sinks_end_;  // positions before this are seen whatever the window
  cudaStream_t stream_;
  std::int64_t rows_;
  Scratch<f16> q_;
  Scratch<float> weighted_;
  Scratch<float> per_row_;
  CausalStates states_;
};

}  // namespace

void CudaBackend::attend_causal(const CacheView& cache, const float* q, int T, int query_heads,
                                const CausalWindow& window, float* out, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (T <= 0) return;
  if (T == 1) {  // a decode step: rows are read where they lie
    const std::int64_t end = cache.tokens();
    const std::int64_t sinks = end_of_sinks(cache, window);
    Attended all;
    all.ranges[0] = {first_position(cache), sinks};
    all.ranges[1] = {window.window > 0 ? std::max(sinks, end - window.window) : sinks, end};
    return attend(cache, q, query_heads, all, out, queue);
  }
  CausalAttention(context_, cache, T, query_heads, cache.tokens() - T, window, stream).run(q, {}, out);
}

void CudaBackend::attend_causal_part(const CacheView& part, const float* q, int T, int query_heads, std::int64_t first,
                                     const SoftmaxPart& partial, float* out, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (T <= 0) return;
  if (T == 1) {
    Attended seen;
    seen.ranges[0] = {first_position(part), std::min(first + 1, part.tokens())};
    seen.partial = partial;
    return attend(part, q, query_heads, seen, out, queue);
  }
  CausalAttention(context_, part, T, query_heads, first, {}, stream).run(q, partial, out);
}

}  // namespace hayloft::gpu::cuda
