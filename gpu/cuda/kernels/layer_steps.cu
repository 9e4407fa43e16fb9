#include "gpu/layer_steps.h"

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda_memory.h"

// Each part of a layer between its products is one kernel. A step of decoding launches little else,
// and each of these kernels has little to do.
namespace hayloft::gpu::cuda {
namespace {

// Each row has a block of norm_threads().
__global__ void add_and_norm_kernel(const AddAndNorm a) {
  __shared__ float scratch[kMostThreads / kWarp + 1];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * a.n;
  float* const y = a.y + row;
  const float* const x = a.x + row;
  bool finite = true;
  const auto take = [&](int i) {
    const float sum = y[i] + x[i];
    y[i] = sum;
    finite &= finite_number(sum);
    return sum;
  };
  if (a.weight) {
    norm_row(y, take, a.n, a.weight, a.eps, a.normed + row, scratch);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < a.n; i += static_cast<int>(blockDim.x)) take(i);
  }
  if (a.flag && !finite) atomic_min(a.flag, a.tag);
}

struct EnteringHeads {
  NewHeads heads;
  int queries = 0;  // heads of a token; 0 without any
  int kv_heads = 0;
  int d = 0;
  std::int64_t position = 0;  // of the first token
  f16* rows = nullptr;        // TailView's
  std::int64_t capacity = 0;
  std::int64_t slot = 0;
};

// Grid: (queries, keys and values of a token, T); a head has a block of norm_threads().
__global__ void enter_kernel(const EnteringHeads a) {
  __shared__ float x[offload::most_head_dim];
  __shared__ float scratch[offload::most_head_dim / (kNormHeld * kWarp) + 1];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), d = a.d;
  const std::int64_t token = blockIdx.y;
  int head = static_cast<int>(blockIdx.x);
  const bool query = head < a.queries;
  head -= query ? 0 : a.queries;
  const bool value = !query && head >= a.kv_heads;
  head -= value ? a.kv_heads : 0;
  const int heads = query ? a.queries : a.kv_heads;
  float* const from = (query ? a.heads.q : value ? a.heads.v : a.heads.k) + (token * heads + head) * d;
  const float* const weight = query ? a.heads.q_norm : value ? a.heads.v_norm : a.heads.k_norm;
  if (weight) {
    norm_row(
        from, [&](int i) { return from[i]; }, d, weight, a.heads.eps, x, scratch);
  } else {
    for (int i = thread; i < d; i += threads) x[i] = from[i];
  }
  __syncthreads();
  if (!value && a.heads.rope.inverse_frequency) {
    const int half = a.heads.rope.pairs;
    for (int pair = thread; pair < half; pair += threads) {
      const Turn turn = turn_at(a.position + token, a.heads.rope.inverse_frequency[pair], a.heads.rope.magnitude);
      const float2 turned = turn.of(x[pair], x[pair + half]);
      x[pair] = turned.x;
      x[pair + half] = turned.y;
    }
    __syncthreads();
  }
  if (query) {
    for (int i = thread; i < d; i += threads) from[i] = x[i];
    return;
  }
  f16* const row = a.rows + (head * a.capacity + a.slot + token) * 2 * d + (value ? d : 0);
  for (int pair = thread; pair < d / 2; pair += threads) {
    reinterpret_cast<unsigned*>(row)[pair] = narrow_pair(x[2 * pair], x[2 * pair + 1]);
  }
}

}  // namespace

void CudaBackend::add_and_norm(const AddAndNorm& what, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("add_and_norm", add_and_norm_kernel, {dim3(static_cast<unsigned>(what.rows)), dim3(norm_threads(what.n))},
         stream, what);
}

// A prompt's many heads go by kernels that fill the device better.
void CudaBackend::enter(const CacheView& cache, const NewHeads& heads, Stream queue) {
  if (heads.T > cuda_tokens_as_alone) return Backend::enter(cache, heads, queue);
  const cudaStream_t stream = native(queue);
  EnteringHeads entering{heads,
                         heads.q ? heads.query_heads : 0,
                         cache.kv_heads,
                         cache.head_dim,
                         cache.tokens(),
                         cache.tail.rows,
                         cache.tail.capacity,
                         0};
  entering.heads.rope.pairs = heads.rope.pairs_of(cache.head_dim);
  entering.slot = cache.tail.first + cache.tail.tokens;
  const dim3 grid(static_cast<unsigned>(entering.queries + 2 * cache.kv_heads), static_cast<unsigned>(heads.T));
  launch("enter", enter_kernel, {grid, dim3(norm_threads(cache.head_dim))}, stream, entering);
}

}  // namespace hayloft::gpu::cuda
