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

constexpr int kMostThreads = 1024;  // of a block

template <class T>
__global__ void embed_kernel(const T* table, const std::int32_t* tokens, int cols, std::int64_t n, float* out) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    const std::int64_t token = tokens[i / cols];
    out[i] = widen(table[token * cols + i % cols]);
  }
}

constexpr int kNormHeld = 4;  // elements that a thread keeps between the two passes

// Each row has a block, of a thread for kNormHeld elements as far as a block has so many.
__global__ void rms_norm_kernel(const float* x, int n, const float* weight, float eps, float* y) {
  __shared__ float scratch[kMostThreads / kWarp + 1];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * n;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float held[kNormHeld], factors[kNormHeld];
  for (int j = 0; j < kNormHeld; ++j) {
    const int i = thread + j * threads;
    held[j] = i < n ? x[row + i] : 0.0f;
    factors[j] = i < n ? weight[i] : 0.0f;
  }
  float squares = 0;
  for (int j = 0; j < kNormHeld; ++j) squares += held[j] * held[j];
  for (int i = thread + kNormHeld * threads; i < n; i += threads) squares += x[row + i] * x[row + i];
  const float scale = 1 / sqrtf(block_sum(squares, scratch) / static_cast<float>(n) + eps);
  for (int j = 0; j < kNormHeld; ++j) {
    const int i = thread + j * threads;
    if (i < n) y[row + i] = held[j] * scale * factors[j];
  }
  for (int i = thread + kNormHeld * threads; i < n; i += threads) y[row + i] = x[row + i] * scale * weight[i];
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
    const bool finite = (bits_of(x[i]) & 0x7f800000u) != 0x7f800000u;
    if (finite) x[i] = cap * tanhf(x[i] / cap);
  }
}

__global__ void flag_nonfinite_kernel(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag) {
  bool found = false;
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    found |= (bits_of(x[i]) & 0x7f800000u) == 0x7f800000u;
  }
  if (found) atomic_min(flag, tag);
}

// Grid: (T, parts of the heads). A thread rotates one pair of components in every so-manieth head of its token, by an
// angle found once. In double until what is left of the angle is below one turn, so that a position of a million is as
// exact as position one; half a turn then costs half a unit in f32's last place of it.
__global__ void rope_kernel(float* x, int heads, int d, std::int64_t position, const float* inverse_frequency, int half,
                            float magnitude) {
  const int step = kStridedThreads / half;
  const int pair = static_cast<int>(threadIdx.x) % half;
  const int first = static_cast<int>(threadIdx.x) / half;
  if (first >= step) return;
  constexpr double half_turns = 0.31830988618379067154;  // 1 / pi
  const double angle =
      static_cast<double>(position + blockIdx.x) * static_cast<double>(inverse_frequency[pair]) * half_turns;
  float sine, cosine;
  sin_cos_pi(static_cast<float>(angle - 2 * rint(angle / 2)), &sine, &cosine);
  sine *= magnitude;
  cosine *= magnitude;
  const int stride = step * static_cast<int>(gridDim.y);
  for (int head = first + step * static_cast<int>(blockIdx.y); head < heads; head += stride) {
    float* const at = x + (static_cast<std::int64_t>(blockIdx.x) * heads + head) * d + pair;
    const float a = at[0], b = at[half];
    at[0] = a * cosine - b * sine;
    at[half] = b * cosine + a * sine;
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
  const int warps = std::min(kMostThreads / kWarp, static_cast<int>(blocks_for(n, kNormHeld * kWarp)));
  launch("rms_norm", rms_norm_kernel, {dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(warps * kWarp))},
         stream, x, n, weight, eps, y);
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
