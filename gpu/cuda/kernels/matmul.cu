#include <algorithm>
#include <optional>
#include <vector>

#include "gpu/cuda/api/cublas.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/inputs_f16.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.h"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda_memory.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kProductThreads = 256;
constexpr int kInFlight = 4;  // 16-byte loads per lane: enough to keep device memory busy at half of a full occupancy

// The inner product of 16 bytes of weights with the inputs they meet.
__device__ inline float dot(uint4 weights, const float* x, const float*) {
  float v[4];
  load_four(x, v);
  return float_of(weights.x) * v[0] + float_of(weights.y) * v[1] + float_of(weights.z) * v[2] +
         float_of(weights.w) * v[3];
}
__device__ inline float dot(uint4 weights, const float* x, const f16*) {
  float v[8];
  load_four(x, v);
  load_four(x + 4, v + 4);
  const float2 a = widen_pair(weights.x), b = widen_pair(weights.y);
  const float2 c = widen_pair(weights.z), d = widen_pair(weights.w);
  return a.x * v[0] + a.y * v[1] + b.x * v[2] + b.y * v[3] + c.x * v[4] + c.y * v[5] + d.x * v[6] + d.y * v[7];
}
__device__ inline float dot(uint4 weights, const float* x, const bf16*) {
  float v[8];
  load_four(x, v);
  load_four(x + 4, v + 4);
  const unsigned words[4] = {weights.x, weights.y, weights.z, weights.w};
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    sum += float_of(words[i] << 16) * v[2 * i] + float_of(words[i] & 0xffff0000u) * v[2 * i + 1];
  }
  return sum;
}

// y = W x + bias for each of a few tokens by itself: reads W once, at the speed of device memory. One warp per row of W
// and token; the blocks of all tokens for the same rows lie behind one another, so that the others find them in the L2
// cache. `vectors` is how many times 16 bytes of a row are read as such; 0 where rows are not aligned to that.
template <class T>
__global__ void __launch_bounds__(kProductThreads)
    one_token_kernel(const float* x, int tokens, const T* w, int rows, int cols, int vectors, const float* bias,
                     float* y) {
  constexpr int elements = 16 / sizeof(T);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int block = static_cast<int>(blockIdx.x) / tokens, token = static_cast<int>(blockIdx.x) % tokens;
  const int row = block * (kProductThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  x += static_cast<std::int64_t>(token) * cols;
  y += static_cast<std::int64_t>(token) * rows;
  const T* const from = w + static_cast<std::int64_t>(row) * cols;
  float sum = 0;
  int v = lane;
  for (int batch = 0; batch < vectors / (kInFlight * kWarp); ++batch, v += kInFlight * kWarp) {
    uint4 weights[kInFlight];
    for (int i = 0; i < kInFlight; ++i) weights[i] = load16_once(from + (v + i * kWarp) * elements);
    warp_barrier();  // keeps the compiler from moving loads down to their use, one after the other
    for (int i = 0; i < kInFlight; ++i) sum += dot(weights[i], x + (v + i * kWarp) * elements, from);
  }
  for (; v < vectors; v += kWarp) sum += dot(load16_once(from + v * elements), x + v * elements, from);
  for (int i = vectors * elements + lane; i < cols; i += kWarp) sum += widen(from[i]) * x[i];
  sum = warp_sum(sum);
  if (lane == 0) y[row] = bias ? sum + bias[row] : sum;
}

// Rounded to nearest even; NaN stays NaN.
__device__ inline void convert(float x, bf16& to) {
  const unsigned bits = bits_of(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<std::uint16_t>((nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__global__ void convert_to_bf16(const float* x, std::int64_t n, bf16* to) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) convert(x[i], to[i]);
}

// One block per token: y = scale * y + bias, either of which may be null.
__global__ void __launch_bounds__(kProductThreads)
    scale_and_bias(float* y, int rows, const float* scales, const float* bias) {
  const float scale = scales ? scales[blockIdx.x] : 1.0f;
  if (scale == 1 && !bias) return;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows;
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += kProductThreads) {
    y[row + i] = scale * y[row + i] + (bias ? bias[i] : 0.0f);
  }
}

template <class T>
bool aligned(const float* x, const T* w, int cols) {
  return (reinterpret_cast<std::uintptr_t>(w) | reinterpret_cast<std::uintptr_t>(x)) % 16 == 0 &&
         static_cast<std::uint64_t>(cols) * sizeof(T) % 16 == 0;
}

// y [T][rows] = x [T][cols] W^T in row-major order is y^T = W x^T in the column-major one that BLAS thinks in.
// `stride` is that of y's rows.
void multiply(const Context& context, cudaDataType type, const void* x, int T, const Matrix& w, float* y, int stride,
              cudaStream_t stream) {
  const float one = 1, zero = 0;
  if (stream != context.compute) context.order(stream, context.compute);
  in_order(context.compute);
  {
    const std::lock_guard lock(context.cublas.mutex);
    check(context.cublas.functions.gemm_ex(context.cublas.handle, CUBLAS_OP_T, CUBLAS_OP_N, w.rows, T, w.cols, &one,
                                           w.data, type, w.cols, x, type, w.cols, &zero, y, CUDA_R_32F, stride,
                                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }
  if (stream != context.compute) context.order(context.compute, stream);
}

// As multiply, with x in f16: as many rows of the matrix at a time as fit the panel, unpacked to f16.
void multiply_panels(const Context& context, const f16* x, int T, const Matrix& w, float* y, cudaStream_t stream) {
  const auto row_bytes = static_cast<std::int64_t>(w.cols) * static_cast<std::int64_t>(sizeof(f16));
  const auto fitting = static_cast<std::int64_t>(cuda_panel_bytes) / (row_bytes * packed_tile_rows);
  const int most =
      static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>(fitting, w.rows))) * packed_tile_rows;
  const int height = std::min(most, w.rows);
  const Scratch<f16> panel(context, static_cast<std::int64_t>(height) * w.cols, stream);
  for (int first = 0; first < w.rows; first += height) {
    const int rows = std::min(height, w.rows - first);
    unpack_rows(context, w, first, rows, panel, stream);
    multiply(context, CUDA_R_16F, x, T, {panel.data(), DType::f16, rows, w.cols}, y + first, w.rows, stream);
  }
}

void finish(const MatrixProduct& product, const float* scales, cudaStream_t stream) {
  launch("scale and bias", scale_and_bias, {dim3(static_cast<unsigned>(product.T)), dim3(kProductThreads)}, stream,
         product.y, product.w->rows, scales, product.bias);
}

// Holds the inputs of many tokens as numbers of f16, each token's with a scale.
class InputsInF16 {
 public:
  InputsInF16(const Context& context, const float* x, int T, int cols, cudaStream_t stream)
      : from_(x),
        tokens_(T),
        cols_(cols),
        values_(context, static_cast<std::int64_t>(T) * cols, stream),
        scales_(context, T, stream) {
    round_to_f16(x, T, cols, {}, values_, scales_, stream);
  }
  bool are(const MatrixProduct& of) const { return of.x == from_ && of.T == tokens_ && of.w->cols == cols_; }
  const f16* values() const { return values_.data(); }
  const float* scales() const { return scales_.data(); }

 private:
  const float* from_;
  int tokens_, cols_;
  Scratch<f16> values_;
  Scratch<float> scales_;
};

// Multiplies with weights in f16, or packed ones.
void multiply_in_f16(const Context& context, const InputsInF16& inputs, const MatrixProduct& product,
                     cudaStream_t stream) {
  if (product.w->type == DType::f16) {
    multiply(context, CUDA_R_16F, inputs.values(), product.T, *product.w, product.y, product.w->rows, stream);
  } else {
    multiply_panels(context, inputs.values(), product.T, *product.w, product.y, stream);
  }
  finish(product, inputs.scales(), stream);
}

// Says which kernels of packed weights a product has, or that it goes the way of others.
enum class Way { plain, few_tokens, prompt };
Way way_of(const Context& context, const MatrixProduct& product) {
  if (product.w->type != DType::packed) return Way::plain;
  if (product.T <= cuda_tokens_as_alone) return Way::few_tokens;
  return context.wide_products && product.T > cuda_tokens_in_registers ? Way::plain : Way::prompt;
}

}  // namespace

// Inputs are f32. A few tokens meet weights that are not packed in f32. More go through tensor cores, which want both
// sides of one type: inputs are rounded to that of the weights (relative error 2^-11 for f16, and 2^-8 for bf16),
// products and sums stay f32. f32 weights are multiplied in f32. Packed weights are numbers of f16 when many tokens
// meet them: they are unpacked in registers, or into panels where tensor cores want more than warps by themselves bring
// them.
void CudaBackend::matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (T <= 0 || w.rows <= 0) return;
  const MatrixProduct product{x, T, &w, y, bias};
  if (const Way way = way_of(context_, product); way != Way::plain) {
    return way == Way::few_tokens ? multiply_packed(context_, {&product, 1}, stream)
                                  : multiply_packed_prompts(context_, {&product, 1}, stream);
  }
  if (T <= cuda_tokens_as_alone) {
    with_type(w.type, [&]<class E>(const E*) {
      const E* const weights = static_cast<const E*>(w.data);
      const int vectors = aligned(x, weights, w.cols) ? static_cast<int>(w.cols * sizeof(E) / 16) : 0;
      const unsigned blocks = blocks_for(w.rows, kProductThreads / kWarp) * static_cast<unsigned>(T);
      launch("matmul of one token", one_token_kernel<E>, {dim3(blocks), dim3(kProductThreads)}, stream, x, T, weights,
             w.rows, w.cols, vectors, bias, y);
    });
    return;
  }
  if (w.type == DType::f16 || w.type == DType::packed) {
    return multiply_in_f16(context_, InputsInF16(context_, x, T, w.cols, stream), product, stream);
  }
  if (w.type == DType::f32) {
    multiply(context_, CUDA_R_32F, x, T, w, y, w.rows, stream);
  } else {
    const std::int64_t inputs = static_cast<std::int64_t>(T) * w.cols;
    const Scratch<bf16> converted(context_, inputs, stream);
    launch("convert to bf16", convert_to_bf16, strided(context_.multiprocessors, inputs), stream, x, inputs,
           converted.data());
    multiply(context_, CUDA_R_16BF, converted, T, w, y, w.rows, stream);
  }
  if (bias) finish(product, nullptr, stream);
}

// Products with packed weights go together; neighbours among the others that have their inputs in common convert these
// once.
void CudaBackend::multiply_each(std::span<const MatrixProduct> products, Stream queue) {
  const cudaStream_t stream = native(queue);
  std::vector<MatrixProduct> few_tokens, prompts;
  std::optional<InputsInF16> inputs;
  for (const MatrixProduct& each : products) {
    if (each.T <= 0 || each.w->rows <= 0) continue;
    const bool in_f16 = each.w->type == DType::packed || each.w->type == DType::f16;
    if (const Way way = way_of(context_, each); way != Way::plain) {
      (way == Way::few_tokens ? few_tokens : prompts).push_back(each);
    } else if (each.T <= cuda_tokens_as_alone || !in_f16) {
      inputs.reset();  // scratch memory is one operation's at a time
      matmul(each.x, each.T, *each.w, each.bias, each.y, queue);
    } else {
      if (!inputs || !inputs->are(each)) {
        inputs.reset();
        inputs.emplace(context_, each.x, each.T, each.w->cols, stream);
      }
      multiply_in_f16(context_, *inputs, each, stream);
    }
  }
  inputs.reset();
  multiply_packed(context_, few_tokens, stream);
  multiply_packed_prompts(context_, prompts, stream);
}

}  // namespace hayloft::gpu::cuda
