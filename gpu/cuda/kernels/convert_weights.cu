#include "gpu/cuda/api/fetch.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"

// bf16 weights where tensor cores don't know bf16 (compute capability 7.5): cuBLAS multiplies them there without, many
// times slower than f16.
//
// In f16 a bf16 number is the same from 2^-17 up to 65504, and off by at most 2^-25 below, where f16 runs out of
// digits. So a matrix becomes f16 when none of its elements is beyond 65504 and the errors of all, root of the sum of
// squares, are at most 2^-11 of the same norm of the matrix: the error that rounding activations to f16 makes anyway.
// Weights of models, some 2^-6 in magnitude, are far from both.
namespace hayloft::gpu::cuda {
namespace {

constexpr double kMostLoss = 0x1p-11;

// Sums of squares, in double: those of bf16 leave the range of f32.
struct Loss {
  double norm = 0;
  double error = 0;  // infinite when f16 has no such number at all
};

// One Loss per block.
__global__ void __launch_bounds__(kStridedThreads) measure_loss(const bf16* w, std::int64_t n, Loss* losses) {
  __shared__ double norms[kStridedThreads], errors[kStridedThreads];
  double norm = 0, error = 0;
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    const float x = widen(w[i]);
    if (fabsf(x) <= 65504.0f) {  // never true of NaN
      const auto off = static_cast<double>(widen(narrow(x)) - x);
      norm += static_cast<double>(x) * static_cast<double>(x);
      error += off * off;
    } else {
      error += static_cast<double>(float_of(0x7f800000u));
    }
  }
  norms[threadIdx.x] = norm;
  errors[threadIdx.x] = error;
  for (unsigned half = kStridedThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      norms[threadIdx.x] += norms[threadIdx.x + half];
      errors[threadIdx.x] += errors[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    losses[blockIdx.x].norm = norms[0];
    losses[blockIdx.x].error = errors[0];
  }
}

// In place: both take 16 bits.
__global__ void bf16_to_f16(std::uint16_t* w, std::int64_t n) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) w[i] = narrow(widen(bf16{w[i]})).bits;
}

}  // namespace

DType CudaBackend::convert_weights(void* w, DType type, std::int64_t n, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (type != DType::bf16 || context_.bf16_products) return type;
  const Shape shape = strided(context_.multiprocessors, n);
  const Scratch<Loss> losses(context_, shape.blocks.x, stream);
  launch("measure_loss", measure_loss, shape, stream, static_cast<const bf16*>(w), n, losses.data());
  Loss all;
  for (const Loss& loss : fetch(losses.data(), shape.blocks.x, stream)) {
    all.norm += loss.norm;
    all.error += loss.error;
  }
  if (!(all.error <= kMostLoss * kMostLoss * all.norm)) return type;
  launch("bf16_to_f16", bf16_to_f16, shape, stream, static_cast<std::uint16_t*>(w), n);
  return DType::f16;
}

}  // namespace hayloft::gpu::cuda
