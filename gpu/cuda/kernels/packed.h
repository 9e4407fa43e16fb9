#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/context.h"

// Packed matrices (gpu/packed.h) on the device. Weights and inputs are device memory; everything is queued.
namespace hayloft::gpu::cuda {

// y [w.rows] = W x + bias (null: none), x [w.cols], in f32. Reads each byte of the matrix once.
void multiply_packed(const float* x, const Matrix& w, const float* bias, float* y, cudaStream_t stream);

// The rows [first, first + rows) as f16 [rows][w.cols], each weight rounded to it; `first` begins a tile.
void unpack_rows(const Context& context, const Matrix& w, int first, int rows, f16* out, cudaStream_t stream);

// The rows `tokens` i32 [T] as f32 [T][w.cols].
void embed_packed(const Context& context, const Matrix& w, const std::int32_t* tokens, int T, float* out,
                  cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
