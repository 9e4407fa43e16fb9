#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/memory/upload.h"

// Rows of tokens that go several ways, as those of a mixture of experts do, and come back as sums.
namespace hayloft::gpu::cuda {
namespace {

__global__ void gather_rows_kernel(const float* x, const std::int32_t* rows, std::int64_t n, int cols, float* y) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    y[i] = x[std::int64_t{rows[i / cols]} * cols + i % cols];
  }
}

// Token t has the ways [begins[t], begins[t + 1]), in their order.
__global__ void sum_rows_kernel(const float* x, const std::int32_t* begins, const std::int32_t* ways,
                                const float* weights, std::int64_t n, int cols, float* y) {
  for (std::int64_t i = global_thread(); i < n; i += all_threads()) {
    const std::int64_t token = i / cols, col = i % cols;
    const int begin = begins[token], end = begins[token + 1];
    float sum = 0;
    for (int way = begin; way < end; ++way) {
      const float term = rounded_product(x[std::int64_t{ways[way]} * cols + col], weights[ways[way]]);
      sum = way == begin ? term : sum + term;
    }
    y[i] = sum;
  }
}

}  // namespace

void CudaBackend::gather_rows(const float* x, std::span<const std::int32_t> rows, int cols, float* y, Stream queue) {
  const cudaStream_t stream = native(queue);
  const auto count = static_cast<std::int64_t>(rows.size());
  if (count == 0) return;
  const Scratch<std::int32_t> ids(context_, count, stream);
  upload(ids, rows.data(), rows.size_bytes(), stream);
  launch("gather rows", gather_rows_kernel, strided(context_.multiprocessors, count * cols), stream, x, ids.data(),
         count * cols, cols, y);
}

void CudaBackend::sum_rows(float* x, std::span<const std::int32_t> rows, std::span<const float> weights, int T,
                           int cols, float* y, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (T <= 0) return;
  const std::size_t tokens = static_cast<std::size_t>(T), count = rows.size();
  // One piece, so that it goes up at once: where each token's ways begin, the ways by tokens, and the weights' bits.
  std::vector<std::int32_t> sent(tokens + 1 + 2 * count);
  for (const std::int32_t row : rows) ++sent[static_cast<std::size_t>(row) + 1];
  for (std::size_t t = 0; t < tokens; ++t) sent[t + 1] += sent[t];
  std::vector<std::int32_t> next(sent.begin(), sent.begin() + T);
  std::int32_t* const ways = sent.data() + tokens + 1;
  for (std::size_t i = 0; i < count; ++i) {
    ways[next[static_cast<std::size_t>(rows[i])]++] = static_cast<std::int32_t>(i);
  }
  std::memcpy(ways + count, weights.data(), weights.size_bytes());
  const Scratch<std::int32_t> lists(context_, static_cast<std::int64_t>(sent.size()), stream);
  upload(lists, sent.data(), sent.size() * sizeof(std::int32_t), stream);
  const std::int32_t* const on_device = lists.data() + tokens + 1;
  const std::int64_t n = std::int64_t{T} * cols;
  launch("sum rows", sum_rows_kernel, strided(context_.multiprocessors, n), stream, x, lists.data(), on_device,
         reinterpret_cast<const float*>(on_device + count), n, cols, y);
}

}  // namespace hayloft::gpu::cuda
