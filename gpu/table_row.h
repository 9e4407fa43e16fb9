#pragma once

#include "gpu/backend.h"

namespace hayloft::gpu {

// One row of a matrix in host memory, of any type, as f32 [table.cols], exactly.
void read_row(const Matrix& table, int row, float* out);

}  // namespace hayloft::gpu
