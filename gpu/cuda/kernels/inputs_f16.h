#pragma once

#include "gpu/cuda/api/check.h"
#include "offload/half.h"

// Makes numbers of f16 of the inputs of products by tensor cores.
namespace hayloft::gpu::cuda {

// Says how the inputs lie: row-major, [T][cols], or, for products of packed weights, [cols / 32][T][32], where the 32
// columns of a chunk lie as the four lanes have them that multiply weights of a row: of each the columns of its two
// quads (CodeWords::column_of), a column of the one and a column of the other in turn. The order goes by how many quads
// a word of codes has, 1, 2 or 4.
struct InputOrder {
  int quads_of_word = 0;  // 0: row-major
};

// Queues: x f32 [T][cols] = scales [T] times out, rounded. A scale is a power of two, above 1 for what f16 does not
// hold. Everything is device memory.
void round_to_f16(const float* x, int T, int cols, InputOrder order, f16* out, float* scales, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
