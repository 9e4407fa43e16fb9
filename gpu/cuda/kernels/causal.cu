#include <algorithm>
#include <limits>
#include <optional>

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/causal_run.h"

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
void attend_queries(const Context& context, const CacheView& cache, const float* q, int T, int query_heads,
                    std::int64_t first, const CausalWindow& window, const SoftmaxPart& partial, float* out,
                    cudaStream_t stream) {
  CausalQueries queries(context, cache, T, query_heads, stream);
  const CausalStates& states = queries.states();
  queries.begin(q);
  const auto attend_span = [&](std::int64_t begin, std::int64_t end, std::int64_t kept) {
    const std::int64_t stored = std::min(end, cache.store.tokens) - begin;
    std::optional<RowStream> rows;
    if (stored > 0) rows.emplace(context, cache, cache.kv_heads, stored, stream);
    pass_over(cache, rows ? &*rows : nullptr, begin, end, first, [&](CausalKeys keys) {
      keys.window = static_cast<int>(std::min<std::int64_t>(kept, keys.window));
      const auto attend = [&](auto tile) {
        using Tile = decltype(tile);
        const dim3 blocks(blocks_for(states.rows, Tile::rows), static_cast<unsigned>(cache.kv_heads));
        launch_causal<Tile>("attend_keys", attend_keys<Tile>, blocks, stream, states, keys);
      };
      // As much as a block can have is about what its multiprocessor has.
      const bool wide = context.block_shared_bytes > static_cast<int>(2 * CausalTile<128, true>::shared_bytes);
      wide ? with_causal_tile<true>(cache.head_dim, attend) : with_causal_tile<false>(cache.head_dim, attend);
    });
  };
  // Sinks are seen whatever the window.
  const std::int64_t sinks_end = end_of_sinks(cache, window), end = std::min(cache.tokens(), first + T);
  const std::int64_t lowest = window.window > 0 ? std::max(sinks_end, first - window.window + 1) : sinks_end;
  constexpr std::int64_t all = std::numeric_limits<std::int64_t>::max();
  attend_span(first_position(cache), sinks_end, all);
  attend_span(lowest, end, window.window > 0 ? window.window : all);
  queries.finish(partial, out);
}

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
  attend_queries(context_, cache, q, T, query_heads, cache.tokens() - T, window, {}, out, stream);
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
  attend_queries(context_, part, q, T, query_heads, first, {}, partial, out, stream);
}

}  // namespace hayloft::gpu::cuda
