#pragma once

#include <cstddef>
#include <memory>

#include "gpu/cuda/context.cuh"

// The verbs of gpu/backend.h on CUDA, one file each; the contracts are the seam's. All pointers are to device memory
// unless said otherwise, and everything is queued on `stream`.
namespace hayloft::gpu::cuda {

// host_memory.cu
std::shared_ptr<std::byte> host_memory(const Context& context, std::uint64_t bytes);

// elementwise.cu
void embed(const Context& context, const Matrix& table, const std::int32_t* tokens /* [T] host */, int T, float* out,
           cudaStream_t stream);
void rms_norm(const Context& context, const float* x, int rows, int n, const float* weight, float eps, float* y,
              cudaStream_t stream);
void add(const Context& context, float* y, const float* x, std::int64_t n, cudaStream_t stream);
void silu_mul(const Context& context, float* gate, const float* up, std::int64_t n, cudaStream_t stream);
void flag_nonfinite(const Context& context, const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag,
                    cudaStream_t stream);
void rope(const Context& context, float* x, int T, int heads, int d, std::int64_t position, const Rope& rope,
          cudaStream_t stream);

// matmul.cu
void matmul(const Context& context, const float* x, int T, const Matrix& w, const float* bias, float* y,
            cudaStream_t stream);

// weight_type.cu; done on return
DType convert_weights(const Context& context, void* w, DType type, std::int64_t n, cudaStream_t stream);

// top_values.cu; done on return
void top_values(const Context& context, const float* x, std::int64_t n, int k, std::int32_t* ids /* host */,
                float* values /* host */, cudaStream_t stream);

// cache_write.cu
void append(const Context& context, const CacheView& cache, const float* k, const float* v, int T, cudaStream_t stream);
void spill(const Context& context, const CacheView& cache, int tokens, const offload::BlockLayout& layout,
           std::byte* block /* host */, cudaStream_t stream);

// decode.cu
void attend(const Context& context, const CacheView& cache, const float* q, int query_heads, const Attended& what,
            float* out, cudaStream_t stream);

// causal.cu
void attend_causal(const Context& context, const CacheView& cache, const float* q, int T, int query_heads,
                   const CausalWindow& window, float* out, cudaStream_t stream);

// select_sparq.cu
void select_sparq(const Context& context, const CacheView& cache, const float* q, int query_heads,
                  const SparqSelect& args, std::int32_t* positions, float* alpha, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
