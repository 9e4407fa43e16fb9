#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/select.h"
#include "gpu/cuda/components.cuh"
#include "gpu/cuda/fetch.cuh"
#include "gpu/cuda/staging.cuh"
#include "gpu/cuda/verbs.cuh"

// Exact top-k: the search runs on the processors near the memory, and the device waits for it, as the verb by its
// nature must. Only the query crosses the link, and the positions back.
namespace hayloft::gpu::cuda {
namespace {

struct TailSoftmax {
  std::vector<float> max;  // [Hq]
  std::vector<float> sum;  // [Hq]
};

// Exact logits are SparQ's with every component, whose temperature is sqrt(d).
TailSoftmax tail_softmax(const Context& context, const CacheView& cache, const float* q, int query_heads,
                         cudaStream_t stream) {
  const int d = cache.head_dim;
  const int group = query_heads / cache.kv_heads;
  const std::int64_t chunks = chunks_of(cache.tail.tokens);
  const Scratch<std::int32_t> components(context, std::int64_t{cache.kv_heads} * d, stream);
  const Scratch<float> weights(context, std::int64_t{query_heads} * d, stream);
  const Scratch<float> notes(context, 2 * query_heads * chunks, stream);
  choose_components(q, cache.kv_heads, group, d, d, Temperature::head_dim, components, weights, stream);
  sum_tail(cache.tail, d, components, weights, d, group, 0, cache.kv_heads,
           {notes, notes + query_heads * chunks, chunks}, stream);
  const std::vector<float> noted = fetch(notes.data(), 2 * query_heads * chunks, stream);
  TailSoftmax tail;
  for (int h = 0; h < query_heads; ++h) {
    AttentionState state;
    for (std::int64_t c = h * chunks; c < (h + 1) * chunks; ++c) {
      merge_sums(state.max, state.sum, noted[static_cast<std::size_t>(c)],
                 noted[static_cast<std::size_t>(query_heads * chunks + c)]);
    }
    tail.max.push_back(state.max);
    tail.sum.push_back(state.sum);
  }
  return tail;
}

}  // namespace

void select_exact(const Context& context, const CacheView& cache, const float* q, int query_heads,
                  const ExactSelect& args, std::int32_t* positions, cudaStream_t stream) {
  if (args.k == 0) return;
  TailSoftmax tail;
  if (needs_tail_softmax(args)) tail = tail_softmax(context, cache, q, query_heads, stream);
  const std::vector<float> query = fetch(q, std::int64_t{query_heads} * cache.head_dim, stream);
  const int lists = args.per == index::SelectPer::query_head ? query_heads : cache.kv_heads;
  std::vector<std::int32_t> found(static_cast<std::size_t>(lists) * static_cast<std::size_t>(args.k));
  search_exact(cache.store, query.data(), query_heads, args, tail.max.empty() ? nullptr : tail.max.data(),
               tail.sum.empty() ? nullptr : tail.sum.data(), found.data(), *context.threads);

  // Through pinned memory, so that the copy is not waited for.
  const auto lock = context.staging->lock();
  const std::uint64_t bytes = found.size() * sizeof(std::int32_t);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t part = std::min(bytes - done, context.staging->piece_bytes());
    std::byte* piece = context.staging->acquire();
    std::memcpy(piece, reinterpret_cast<const std::byte*>(found.data()) + done, part);
    HAYLOFT_CUDA(
        cudaMemcpyAsync(reinterpret_cast<std::byte*>(positions) + done, piece, part, cudaMemcpyHostToDevice, stream));
    context.staging->release(stream);
    done += part;
  }
}

}  // namespace hayloft::gpu::cuda
