#include "gpu/cuda/kernels/inputs_f16.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.cuh"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kRoundingThreads = 256;

// Returns the power of two that brings a token's largest below 2^15, when it is finite and beyond 65504, where f16 ends
// and activations need not; else 1.
__device__ inline float overflow_scale(float largest) {
  const unsigned exponent = bits_of(largest) >> 23;  // plus 127
  return largest > 65504.0f && exponent < 255 ? float_of((exponent - 14) << 23) : 1.0f;
}

// A block has a token. shift: -1 for rows of whole inputs, else of column_of_quad().
__global__ void __launch_bounds__(kRoundingThreads)
    round_to_f16_kernel(const float* x, int cols, int shift, f16* out, float* scales) {
  __shared__ float scratch[kRoundingThreads / kWarp + 1];
  const int token = static_cast<int>(blockIdx.x), tokens = static_cast<int>(gridDim.x);
  x += static_cast<std::int64_t>(token) * cols;
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += kRoundingThreads) largest = fmaxf(largest, fabsf(x[i]));
  const float scale = overflow_scale(block_max(largest, scratch));
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += kRoundingThreads) {
    const int chunk = i / kChunkColumns, place = i % kChunkColumns;
    const int column =
        shift < 0 ? i : chunk * kChunkColumns + column_of_quad(place / 8 * 2 + place % 2, place % 8 / 2, shift);
    const std::int64_t at = shift < 0 ? static_cast<std::int64_t>(token) * cols + i
                                      : (static_cast<std::int64_t>(chunk) * tokens + token) * kChunkColumns + place;
    out[at] = narrow(x[column] * (1 / scale));
  }
  if (threadIdx.x == 0) scales[token] = scale;
}

}  // namespace

void round_to_f16(const float* x, int T, int cols, InputOrder order, f16* out, float* scales, cudaStream_t stream) {
  const int shift = order.quads_of_word == 0 ? -1 : order.quads_of_word / 2;  // of 1, 2 and 4: 0, 1 and 2
  launch("round to f16", round_to_f16_kernel, {dim3(static_cast<unsigned>(T)), dim3(kRoundingThreads)}, stream, x, cols,
         shift, out, scales);
}

}  // namespace hayloft::gpu::cuda
