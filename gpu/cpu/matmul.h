#pragma once

#include "gpu/backend.h"

namespace hayloft::gpu {

// y [T][w.rows] = x [T][w.cols] W^T + bias. Few tokens stream the weights once in their own dtype; many convert panels
// of them to f32 for BLAS, which runs on one thread inside each of ours. The same rounding for any number of threads.
void matmul_cpu(const float* x, int T, const Matrix& w, const float* bias, float* y, const offload::Threads& threads);

}  // namespace hayloft::gpu
