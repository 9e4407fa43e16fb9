#pragma once

#include <cstdint>
#include <span>

#include "gpu/backend.h"
#include "gpu/cuda/context.h"

// Packed matrices (gpu/packed.h) on the device. Weights and inputs are device memory; everything is queued.
namespace hayloft::gpu::cuda {

// Computes products of packed matrices, with T > 0 and rows > 0, as Backend::multiply_each does, of inputs rounded as
// packed_token.cu says, each token to the bit as alone. Reads each byte of a matrix once for a token, and for further
// tokens while it is near. Up to 24 products of matrices of the same packing and number of columns are one kernel.
void multiply_packed(const Context& context, std::span<const MatrixProduct> products, cudaStream_t stream);

// Computes products of packed matrices with the tokens of a prompt, with T > 0 and rows > 0, as Backend::multiply_each
// does, by tensor cores: of inputs and weights rounded to f16, sums in f32. Reads each byte of a matrix once for 64 or
// 128 tokens, and for others while it is near. Inputs that products of one order (InputOrder) have in common are
// rounded once; up to 24 products of matrices of the same packing and number of columns are one kernel, of those with
// many blocks and of those with few.
void multiply_packed_prompts(const Context& context, std::span<const MatrixProduct> products, cudaStream_t stream);

// The rows [first, first + rows) as f16 [rows][w.cols], each weight rounded to it; `first` begins a tile.
void unpack_rows(const Context& context, const Matrix& w, int first, int rows, f16* out, cudaStream_t stream);

// The rows `tokens` i32 [T] as f32 [T][w.cols].
void embed_packed(const Context& context, const Matrix& w, const std::int32_t* tokens, int T, float* out,
                  cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
