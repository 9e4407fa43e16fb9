#pragma once

// ColumnBits of every column format that has them.
#include "gpu/cuda/kernels/columns/f16.cuh"
#include "gpu/cuda/kernels/columns/int4.cuh"
#include "gpu/cuda/kernels/columns/int8.cuh"
