#include "gpu/cuda/kernels/select/components.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kComponentThreads = 256;  // at least the largest head dimension
constexpr int kTailThreads = kChunkTokens;

__device__ inline double warp_sum_double(double x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// chosen and all: |q[i1]|_1 and |q|_1.
__device__ inline float temperature_of(index::Temperature temperature, int head_dim, int rank, double chosen,
                                       double all) {
  if (temperature == index::Temperature::head_dim) return static_cast<float>(sqrt(static_cast<double>(head_dim)));
  if (temperature == index::Temperature::rank) return static_cast<float>(sqrt(static_cast<double>(rank)));
  return chosen > 0 ? static_cast<float>(sqrt(head_dim * chosen / all)) : 1.0f;
}

// One block per KV head.
__global__ __launch_bounds__(kComponentThreads) void choose_components_kernel(const float* q, int group, int head_dim,
                                                                              int rank, index::Temperature temperature,
                                                                              std::int32_t* components,
                                                                              float* weights) {
  __shared__ unsigned magnitude[kComponentThreads];
  __shared__ int chosen[kComponentThreads];
  __shared__ unsigned taken_of_warp[kComponentThreads / kWarp];
  const int head = blockIdx.x, i = threadIdx.x;
  const int lane = i % kWarp, warp = i / kWarp;
  q += static_cast<std::int64_t>(head) * group * head_dim;
  weights += static_cast<std::int64_t>(head) * group * rank;

  if (i < head_dim) {
    float sum = 0;
    for (int h = 0; h < group; ++h) sum += fabsf(q[h * head_dim + i]);
    magnitude[i] = bits_of(sum);  // of a number that is not negative: their order, and a total one if it is NaN
  }
  __syncthreads();
  bool taken = false;
  if (i < head_dim) {
    int before = 0;
    for (int c = 0; c < head_dim; ++c) {
      before += magnitude[c] > magnitude[i] || (magnitude[c] == magnitude[i] && c < i) ? 1 : 0;
    }
    taken = before < rank;
  }
  const unsigned votes = ballot(taken);
  if (lane == 0) taken_of_warp[warp] = votes;
  __syncthreads();
  if (taken) {
    int slot = count_bits(votes & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) slot += count_bits(taken_of_warp[w]);
    chosen[slot] = i;
    components[head * rank + slot] = i;
  }
  __syncthreads();

  for (int h = warp; h < group; h += kComponentThreads / kWarp) {
    const float* query = q + h * head_dim;
    double all = 0, part = 0;
    for (int c = lane; c < head_dim; c += kWarp) all += fabsf(query[c]);
    for (int j = lane; j < rank; j += kWarp) part += fabsf(query[chosen[j]]);
    all = warp_sum_double(all);
    part = warp_sum_double(part);
    const float tau = temperature_of(temperature, head_dim, rank, part, all);
    for (int j = lane; j < rank; j += kWarp) weights[h * rank + j] = query[chosen[j]] / tau;
  }
}

// One block per chunk of the tail and KV head, one row per thread: rows are in device memory and few.
__global__ __launch_bounds__(kTailThreads) void sum_tail_kernel(TailView tail, int head_dim,
                                                                const std::int32_t* components, const float* weights,
                                                                int rank, int group, int first,
                                                                PartialSoftmax partials) {
  __shared__ float scratch[kTailThreads / kWarp + 1];
  constexpr float infinity = __builtin_inff();
  const std::int64_t head = first + static_cast<std::int64_t>(blockIdx.y);
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTailThreads + threadIdx.x;
  const bool live = token < tail.tokens;
  components += head * rank;
  const f16* key = tail.rows + (head * tail.capacity + tail.first + (live ? token : 0)) * 2 * head_dim;
  for (int h = 0; h < group; ++h) {
    const float* weight = weights + (head * group + h) * rank;
    float s = live ? 0 : -infinity;
    for (int j = 0; live && j < rank; ++j) s = fmaf(weight[j], widen(key[components[j]]), s);
    const float max = block_max(s, scratch);
    const float sum = block_sum(s == -infinity ? 0.0f : expf(s - max), scratch);
    if (threadIdx.x == 0) {
      const std::int64_t slot = (blockIdx.y * static_cast<std::int64_t>(group) + h) * partials.stride + blockIdx.x;
      partials.max[slot] = max;
      partials.sum[slot] = sum;
    }
  }
}

}  // namespace

void choose_components(const float* q, int kv_heads, int group, int head_dim, int rank, index::Temperature temperature,
                       std::int32_t* components, float* weights, cudaStream_t stream) {
  launch("choose_components", choose_components_kernel, {static_cast<unsigned>(kv_heads), kComponentThreads}, stream, q,
         group, head_dim, rank, temperature, components, weights);
}

void sum_tail(const TailView& tail, int head_dim, const std::int32_t* components, const float* weights, int rank,
              int group, int first, int heads, const PartialSoftmax& partials, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(chunks_of(tail.tokens)), static_cast<unsigned>(heads));
  launch("sum_tail", sum_tail_kernel, {grid, kTailThreads}, stream, tail, head_dim, components, weights, rank, group,
         first, partials);
}

}  // namespace hayloft::gpu::cuda
