#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>

// The one door for results of the CUDA runtime and of cuBLAS.
namespace hayloft::gpu::cuda {

// Throw Error (NoDevice when there is none, or no driver for it) with what happened, what to do where that is known
// (out of memory, a lost device, a driver that is too old), CUDA's name for it, the call and its place. `bytes`, when
// not 0, is what the call asked for.
void check(cudaError_t result, const char* call, std::uint64_t bytes = 0,
           std::source_location where = std::source_location::current());
void check(cublasStatus_t result, const char* call, std::source_location where = std::source_location::current());

}  // namespace hayloft::gpu::cuda

// The call's text is part of the error, hence a macro.
#define HAYLOFT_CUDA(call) ::hayloft::gpu::cuda::check((call), #call)
