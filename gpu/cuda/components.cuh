#pragma once

#include <cstdint>

#include "gpu/cuda/intrinsics.cuh"

// What SparQ's step 1 multiplies with (arXiv 2312.04985, section 4): for each KV head the components it reads, for each
// query head their weights. gpu/cpu/select.h has the same in plain C++.
namespace hayloft::gpu::cuda {

inline constexpr int kComponentThreads = 256;  // at least the largest head dimension

__device__ inline double warp_sum_double(double x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// One block per KV head. q f32 [Hq][d]; components out i32 [Hkv][r], ascending: those with the largest sum over the
// group of |q|, added up in the order of the query heads, ties to the smaller index. weights out f32 [Hq][r]:
// q / tau at the components, tau = sqrt(d |q[i1]|_1 / |q|_1), 1 where that is zero.
__global__ __launch_bounds__(kComponentThreads) void choose_components(const float* q, int group, int head_dim,
                                                                       int rank, std::int32_t* components,
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
    const float tau = part > 0 ? static_cast<float>(sqrt(head_dim * part / all)) : 1.0f;
    for (int j = lane; j < rank; j += kWarp) weights[h * rank + j] = query[chosen[j]] / tau;
  }
}

}  // namespace hayloft::gpu::cuda
