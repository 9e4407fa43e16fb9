#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/verbs.cuh"

namespace hayloft::gpu::cuda {
namespace {

// Eight elements per item, one 16-byte store; d is a multiple of 8. k and v may lie anywhere.
__global__ void append_kernel(const float* k, const float* v, int kv_heads, int d, std::int64_t items, f16* rows,
                              std::int64_t capacity, std::int64_t slot) {
  const int pieces = 2 * d / 8;  // of a row
  for (std::int64_t i = global_thread(); i < items; i += all_threads()) {
    const int piece = static_cast<int>(i % pieces);
    const std::int64_t head = i / pieces % kv_heads;
    const std::int64_t token = i / pieces / kv_heads;
    const bool key = piece < pieces / 2;
    const float* const x = (key ? k : v) + (token * kv_heads + head) * d + (key ? piece : piece - pieces / 2) * 8;
    store16(rows + (head * capacity + slot + token) * 2 * d + piece * 8,
            uint4{narrow_pair(x[0], x[1]), narrow_pair(x[2], x[3]), narrow_pair(x[4], x[5]), narrow_pair(x[6], x[7])});
  }
}

}  // namespace

void append(const Context& context, const CacheView& cache, const float* k, const float* v, int T,
            cudaStream_t stream) {
  const TailView& tail = cache.tail;
  const std::int64_t items = static_cast<std::int64_t>(T) * cache.kv_heads * (2 * cache.head_dim / 8);
  launch("append", append_kernel, strided(context, items), stream, k, v, cache.kv_heads, cache.head_dim, items,
         tail.rows, tail.capacity, tail.first + tail.tokens);
}

}  // namespace hayloft::gpu::cuda
