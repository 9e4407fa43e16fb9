#pragma once

#include <algorithm>
#include <limits>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/causal_keys.cuh"
#include "gpu/cuda/kernels/causal_states.cuh"
#include "gpu/cuda/kernels/causal_tile.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/memory/device_context.h"
#include "gpu/cuda/memory/row_stream.h"
#include "index/scan/exact_search.h"

// The host's side of prefill's attention: the states of all queries, keys as they arrive, and the kernels' tiles.
namespace hayloft::gpu::cuda {

// Holds the states of T queries of a layer, and the launches that begin and end them.
class CausalQueries {
 public:
  CausalQueries(const Context& context, const CacheView& cache, int T, int query_heads, cudaStream_t stream)
      : cache_(cache),
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

  // q and out f32 [T][Hq][d].
  void begin(const float* q) {
    launch("begin_causal", begin_causal, shape(), stream_, states_, q, index::exact_scale(cache_.head_dim));
  }
  void finish(const SoftmaxPart& partial, float* out) {
    launch("finish_causal", finish_causal, shape(), stream_, states_, partial, cache_.sinks, out);
  }

  const CausalStates& states() const { return states_; }

 private:
  Shape shape() const {
    return {dim3(blocks_for(rows_, kStateWarps), static_cast<unsigned>(cache_.kv_heads)), dim3(kStateThreads)};
  }

  const CacheView& cache_;
  cudaStream_t stream_;
  std::int64_t rows_;
  Scratch<f16> q_;
  Scratch<float> weighted_;
  Scratch<float> per_row_;
  CausalStates states_;
};

// Calls use(keys) for positions [begin, end) as they arrive: from the store through `rows`, from the tail in place.
// Their places count from `first`.
template <class Use>
void pass_over(const CacheView& cache, RowStream* rows, std::int64_t begin, std::int64_t end, std::int64_t first,
               const Use& use) {
  const auto keys_of = [&](const DenseRows& from, std::int64_t from_key, std::int64_t to_key) {
    const int d = cache.head_dim;
    CausalKeys keys;
    keys.rows = from.rows + (from.first + from_key - from.position) * 2 * d;
    keys.head_stride = from.capacity * 2 * d;
    keys.begin = static_cast<int>(from_key - first);
    keys.end = static_cast<int>(to_key - first);
    keys.window = std::numeric_limits<int>::max();
    use(keys);
  };
  const std::int64_t stored = std::min(end, cache.store.tokens);
  if (begin < stored) rows->range(begin, stored, keys_of);
  const TailView& tail = cache.tail;
  const std::int64_t rest = std::max(begin, cache.store.tokens);
  if (rest < end) keys_of({tail.rows, tail.capacity, tail.first, tail.position}, rest, end);
}

// Calls use(tile) with the CausalTile for heads of so many components.
template <bool wide, class Use>
void with_causal_tile(int head_dim, const Use& use) {
  if (head_dim <= 64) return use(CausalTile<64, false>{});
  if (head_dim <= 96) return use(CausalTile<96, wide>{});
  if (head_dim <= 128) return use(CausalTile<128, wide>{});
  if (head_dim <= 256) return use(CausalTile<256, wide>{});
  use(CausalTile<512, false>{});
}

// Launches a kernel of a tile.
template <class Tile, class... Parameters, class... Arguments>
void launch_causal(const char* name, void (*kernel)(Parameters...), dim3 blocks, cudaStream_t stream,
                   Arguments&&... arguments) {
  if (Tile::shared_bytes > 48 * 1024) allow_shared(name, kernel, Tile::shared_bytes);
  launch(name, kernel, {blocks, dim3(kCausalThreads), Tile::shared_bytes}, stream,
         std::forward<Arguments>(arguments)...);
}

}  // namespace hayloft::gpu::cuda
