#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <source_location>

// The one door for results of the CUDA runtime and of cuBLAS.
namespace hayloft::gpu::cuda {

// Throw Error with the call's place, CUDA's name and text for what happened, and what to do where that is known (out of
// memory, a lost device, a driver that is too old).
void check(cudaError_t result, const char* call, std::source_location where = std::source_location::current());
void check(cublasStatus_t result, const char* call, std::source_location where = std::source_location::current());

}  // namespace hayloft::gpu::cuda

// The call's text is part of the error, hence a macro.
#define HAYLOFT_CUDA(call) ::hayloft::gpu::cuda::check((call), #call)
