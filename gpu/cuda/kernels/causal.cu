#include <algorithm>
#include <mutex>
#include <optional>

#include "gpu/cuda/api/cublas.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/softmax.cuh"
#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda/memory/row_stream.h"
#include "gpu/cuda_memory.h"
#include "index/scan/exact_search.h"

// Prefill's attention: products of queries and keys, softmax and products of weights and values, tile by tile of keys,
// with the states of all queries carried from tile to tile. All g query heads of a KV head and all tokens of a block
// are the rows of one matrix, and the KV heads are a batch, so that every key is read once per block of tokens.
//
// Rounding. K and V are f16 as they are. The products run on tensor cores, which want queries and weights in f16 as
// well, and add up in f32:
//   - a query is scaled to use f16's range whatever its size, so that nothing overflows and every component is off by
//     at most 2^-11 of itself, or 2^-39 of the largest. A score is then off by 2^-11 sum |q_i k_i| / sqrt(d) at most;
//   - a weight is off by 2^-11 of itself, or 2^-40 of the largest; the normaliser adds up the rounded ones.
// An output, the mean of values under these weights, is off by at most twice the sum of the two times the largest
// value; the errors are as good as independent, so that in practice it is far less.
namespace hayloft::gpu::cuda {
namespace {

// Bounds products and weights by what the second-level cache of a recent card has room for.
constexpr std::uint64_t kTileBytes = cuda_tile_bytes;
constexpr std::uint64_t kBudgetShare = 8;  // of what is left, for them

static_assert(kTileKeys == cuda_tile_keys);

// Returns the tokens of a block: a share of what is left where that is much, and whole tiles of tensor cores as long as
// they fit beside the two buffers of rows. Never fewer than a minimum: the allocation then says what is missing.
int tokens_of_a_block(const Context& context, int query_heads, int T) {
  constexpr std::uint64_t buffers = 2 * cuda_least_stream_bytes;
  const std::uint64_t least = cuda_tile_bytes_of(std::min(T, cuda_least_tile_tokens), query_heads);
  const std::uint64_t whole = cuda_tile_bytes_of(std::min(T, cuda_tile_tokens), query_heads);
  const std::uint64_t room = context.arena.room_for_step(whole + buffers);
  const std::uint64_t left = room - std::min(room, buffers);
  const std::uint64_t bytes = std::clamp(left / kBudgetShare, std::min(left, whole), std::max(left, whole));
  return cuda_tokens_of_tile(std::max(least, std::min(kTileBytes, bytes)), query_heads, T);
}

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
        per_row_(context, 3 * cache.kv_heads * rows_, stream),
        block_tokens_(tokens_of_a_block(context, query_heads, T)),
        products_(context, static_cast<std::int64_t>(block_tokens_) * query_heads * kTileKeys, stream),
        weights_(context, static_cast<std::int64_t>(block_tokens_) * query_heads * kTileKeys, stream) {
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
    launch("begin_causal", begin_causal, rows_shape(rows_), stream_, states_, q, scale);
    const std::int64_t end = std::min(cache_.tokens(), first_ + tokens_);
    const std::int64_t lowest = window_ > 0 ? std::max(sinks_end_, first_ - window_ + 1) : sinks_end_;
    attend_span(first_position(cache_), sinks_end_);
    attend_span(lowest, end);
    launch("finish_causal", finish_causal, rows_shape(rows_), stream_, states_, partial, cache_.sinks, out);
  }

 private:
  Shape rows_shape(std::int64_t rows) const {
    return {dim3(blocks_for(rows, kSoftmaxWarps), static_cast<unsigned>(cache_.kv_heads)), dim3(kSoftmaxThreads)};
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

  void attend_keys(const DenseRows& keys, std::int64_t begin, std::int64_t end) {
    for (int token = 0; token < tokens_; token += block_tokens_) {
      const int tokens = std::min(block_tokens_, tokens_ - token);
      const std::int64_t position = first_ + token;
      const std::int64_t to = std::min(end, position + tokens);
      const bool windowed = window_ > 0 && begin >= sinks_end_;
      const std::int64_t from = windowed ? std::max(begin, position - window_ + 1) : begin;
      for (std::int64_t key = from; key < to; key += kTileKeys) {
        attend_tile(keys, key, static_cast<int>(std::min<std::int64_t>(kTileKeys, to - key)), token, tokens);
      }
    }
  }

  void attend_tile(const DenseRows& keys, std::int64_t key, int n, int token, int tokens) {
    const int d = cache_.head_dim;
    CausalTile tile;
    tile.products = products_;
    tile.weights = weights_;
    tile.first_row = static_cast<std::int64_t>(token) * states_.group;
    tile.rows = tokens * states_.group;
    tile.keys = n;
    tile.key = key;
    tile.position = first_ + token;
    tile.window = window_;
    tile.sinks_end = sinks_end_;

    // In cuBLAS's column-major terms: products^T [keys][rows] = K q^T, weighted^T [d][rows] += V^T weights^T.
    const f16* const k = keys.rows + (keys.first + key - keys.position) * 2 * d;
    const long long row_stride = 2 * d;
    const long long head_stride = keys.capacity * 2 * d;
    const long long state_stride = states_.rows * d;
    const long long tile_stride = static_cast<long long>(tile.rows) * kTileKeys;
    multiply(CUBLAS_OP_T, n, tile.rows, d, {k, row_stride, head_stride},
             {states_.q + tile.first_row * d, d, state_stride}, 0, products_, kTileKeys, tile_stride);
    launch("softmax_tile", softmax_tile, rows_shape(tile.rows), stream_, states_, tile);
    multiply(CUBLAS_OP_N, d, tile.rows, n, {k + d, row_stride, head_stride}, {weights_, kTileKeys, tile_stride}, 1,
             states_.weighted + tile.first_row * d, d, state_stride);
  }

  // f16, one matrix per KV head.
  struct Operand {
    const f16* data;
    long long ld;
    long long stride;
  };

  // C [m][n] = op(A) [m][k] B [k][n] + beta C in f32, column-major, for every KV head.
  void multiply(cublasOperation_t op, int m, int n, int k, const Operand& a, const Operand& b, float beta, float* c,
                int ldc, long long stride_c) const {
    const float one = 1;
    Cublas& cublas = context_.cublas;
    const std::lock_guard lock(cublas.mutex);
    check(cublas.functions.gemm_strided_batched_ex(cublas.handle, op, CUBLAS_OP_N, m, n, k, &one, a.data, CUDA_R_16F,
                                                   static_cast<int>(a.ld), a.stride, b.data, CUDA_R_16F,
                                                   static_cast<int>(b.ld), b.stride, &beta, c, CUDA_R_32F, ldc,
                                                   stride_c, cache_.kv_heads, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
  }

  const Context& context_;
  const CacheView& cache_;
  int tokens_;
  std::int64_t first_;      // position of the first query
  std::int64_t window_;     // 0: every position up to the query's own
  std::int64_t sinks_end_;  // positions before this are seen whatever the window
  cudaStream_t stream_;     // cuBLAS's
  std::int64_t rows_;
  Scratch<f16> q_;
  Scratch<float> weighted_;
  Scratch<float> per_row_;
  int block_tokens_;
  Scratch<float> products_;
  Scratch<f16> weights_;
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
  if (stream != context_.compute) context_.order(stream, context_.compute);
  CausalAttention(context_, cache, T, query_heads, cache.tokens() - T, window, context_.compute).run(q, {}, out);
  if (stream != context_.compute) context_.order(context_.compute, stream);
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
  if (stream != context_.compute) context_.order(stream, context_.compute);
  CausalAttention(context_, part, T, query_heads, first, {}, context_.compute).run(q, partial, out);
  if (stream != context_.compute) context_.order(context_.compute, stream);
}

}  // namespace hayloft::gpu::cuda
