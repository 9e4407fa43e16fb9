#pragma once

#include "gpu/cuda/kernels/intrinsics.cuh"

// Reductions over a warp and a block. Every thread gets the result. The order of the additions is fixed, so results do
// not change from run to run.
namespace hayloft::gpu::cuda {

__device__ inline float warp_sum(float x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
__device__ inline float warp_min(float x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fminf(x, shuffle_xor(x, mask));
  return x;
}

// scratch: shared, one float per warp of the block and one more. Contains barriers: all threads of the block call it.
__device__ inline float block_sum(float x, float* scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = (blockDim.x + kWarp - 1) / kWarp;
  x = warp_sum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += scratch[i];
  __syncthreads();
  return sum;
}
__device__ inline float block_max(float x, float* scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = (blockDim.x + kWarp - 1) / kWarp;
  x = warp_max(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float max = scratch[0];
  for (int i = 1; i < warps; ++i) max = fmaxf(max, scratch[i]);
  __syncthreads();
  return max;
}

}  // namespace hayloft::gpu::cuda
