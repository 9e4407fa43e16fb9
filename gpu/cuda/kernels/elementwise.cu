#include "gpu/cuda/kernels/elementwise.cuh"

#include <algorithm>
#include <vector>

#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.h"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda/memory/upload.h"
#include "gpu/table_row.h"

namespace hayloft::gpu::cuda {
namespace {

template <class T>
__global__ void embed_kernel(const T* table, const std::int32_t* tokens, int cols, std::int64_t n, float* out) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    const std::int64_t token = tokens[i / cols];
    out[i] = widen(table[token * cols + i % cols]);
  }
}

// Each row has a block of norm_threads().
__global__ void rms_norm_kernel(const float* x, int n, const float* weight, float eps, float* y) {
  __shared__ float scratch[kMostThreads / kWarp + 1];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * n;
  norm_row(
      x + row, [&](int i) { return x[row + i]; }, n, weight, eps, y + row, scratch);
}

__global__ void add_kernel(float* y, const float* x, std::int64_t n) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) y[i] += x[i];
}

__global__ void scale_kernel(float* x, std::int64_t n, float factor) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) x[i] *= factor;
}

__global__ void silu_mul_kernel(float* gate, const float* up, std::int64_t n) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

__global__ void sigmoid_mul_kernel(float* x, const float* gate, std::int64_t n) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) x[i] = sigmoid(gate[i]) * x[i];
}

// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
__global__ void gelu_mul_kernel(float* gate, const float* up, std::int64_t n) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    const float x = gate[i];
    gate[i] = x * sigmoid(x * (gelu_cubic * (x * x) + gelu_linear)) * up[i];
  }
}

__global__ void clamped_mul_kernel(float* gate, const float* up, std::int64_t n, float limit) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    const float g = gate[i] > limit ? limit : gate[i];  // a NaN stays one
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    gate[i] = (u + 1) * (g * sigmoid(clamped_slope * g));
  }
}

__global__ void soft_cap_kernel(float* x, std::int64_t n, float cap) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    if (finite_number(x[i])) x[i] = cap * tanhf(x[i] / cap);
  }
}

__global__ void flag_nonfinite_kernel(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag) {
  bool found = false;
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    found |= !finite_number(x[i]);
  }
  if (found) atomic_min(flag, tag);
}

// Grid: (T, parts of the heads). A thread rotates one pair of components in every so-manieth head of its token, by an
// angle found once.
__global__ void rope_kernel(float* x, int heads, int d, std::int64_t position, const float* inverse_frequency, int half,
                            float magnitude) {
  const int step = kStridedThreads / half;
  const int pair = static_cast<int>(threadIdx.x) % half;
  const int first = static_cast<int>(threadIdx.x) / half;
  if (first >= step) return;
  const Turn turn = turn_at(position + blockIdx.x, inverse_frequency[pair], magnitude);
  const int stride = step * static_cast<int>(gridDim.y);
  for (int head = first + step * static_cast<int>(blockIdx.y); head < heads; head += stride) {
    float* const at = x + (static_cast<std::int64_t>(blockIdx.x) * heads + head) * d + pair;
    const float2 turned = turn.of(at[0], at[half]);
    at[0] = turned.x;
    at[half] = turned.y;
  }
}

}  // namespace

void CudaBackend::embed(const Matrix& table, const std::int32_t* tokens, int T, float* out, Stream queue) {
  const cudaStream_t stream = native(queue);
  for (int t = 0; t < T; ++t) {
    if (tokens[t] < 0 || tokens[t] >= table.rows) {
      refuse("token id ", tokens[t], " is outside the model's vocabulary of ", table.rows,
             ": the tokenizer does not belong to this model");
    }
  }
  if (table.on_host) {
    std::vector<float> rows(static_cast<std::size_t>(T) * static_cast<std::size_t>(table.cols));
    threads_.parallel_for(T, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) read_row(table, tokens[t], rows.data() + t * table.cols);
    });
    upload(out, rows.data(), rows.size() * sizeof(float), stream);
    return;
  }
  const Scratch<std::int32_t> ids(context_, T, stream);
  upload(ids, tokens, static_cast<std::uint64_t>(T) * sizeof *tokens, stream);
  if (table.type == DType::packed) return embed_packed(context_, table, ids, T, out, stream);
  const std::int64_t n = static_cast<std::int64_t>(T) * table.cols;
  with_type(table.type, [&]<class E>(const E*) {
    launch("embed", embed_kernel<E>, strided(context_.multiprocessors, n), stream, static_cast<const E*>(table.data),
           ids.data(), table.cols, n, out);
  });
}

void CudaBackend::rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("rms_norm", rms_norm_kernel, {dim3(static_cast<unsigned>(rows)), dim3(norm_threads(n))}, stream, x, n, weight,
         eps, y);
}

void CudaBackend::add(float* y, const float* x, std::int64_t n, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("add", add_kernel, strided(context_.multiprocessors, n), stream, y, x, n);
}

void CudaBackend::silu_mul(float* gate, const float* up, std::int64_t n, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("silu_mul", silu_mul_kernel, strided(context_.multiprocessors, n), stream, gate, up, n);
}

void CudaBackend::sigmoid_mul(float* x, const float* gate, std::int64_t n, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("sigmoid_mul", sigmoid_mul_kernel, strided(context_.multiprocessors, n), stream, x, gate, n);
}

void CudaBackend::scale(float* x, std::int64_t n, float factor, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("scale", scale_kernel, strided(context_.multiprocessors, n), stream, x, n, factor);
}

void CudaBackend::gelu_mul(float* gate, const float* up, std::int64_t n, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("gelu_mul", gelu_mul_kernel, strided(context_.multiprocessors, n), stream, gate, up, n);
}

void CudaBackend::clamped_mul(float* gate, const float* up, std::int64_t n, float limit, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("clamped_mul", clamped_mul_kernel, strided(context_.multiprocessors, n), stream, gate, up, n, limit);
}

void CudaBackend::soft_cap(float* x, std::int64_t n, float cap, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("soft_cap", soft_cap_kernel, strided(context_.multiprocessors, n), stream, x, n, cap);
}

void CudaBackend::flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, Stream queue) {
  const cudaStream_t stream = native(queue);
  launch("flag_nonfinite", flag_nonfinite_kernel, strided(context_.multiprocessors, n), stream, x, n, tag, flag);
}

void CudaBackend::rope(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope, Stream queue) {
  const cudaStream_t stream = native(queue);
  // A prompt has tokens enough to fill the device; a single one is spread over its heads.
  const int pairs = rope.pairs_of(d);
  const int per_block = kStridedThreads / pairs;
  const unsigned parts = T >= 64 ? 1 : blocks_for(heads, per_block);
  launch("rope", rope_kernel, {dim3(static_cast<unsigned>(T), parts), dim3(kStridedThreads)}, stream, x, heads, d,
         position, rope.inverse_frequency, pairs, rope.magnitude);
}

}  // namespace hayloft::gpu::cuda
