#pragma once

#include <cstddef>
#include <mutex>

#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// The functions of cuBLAS that are used. The library is a few hundred megabytes and comes from the user's CUDA, so it
// is opened when a device is, not linked: the program starts without it.
struct CublasFunctions {
  cublasStatus_t (*create)(cublasHandle_t*);
  cublasStatus_t (*destroy)(cublasHandle_t);
  cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
  cublasStatus_t (*set_workspace)(cublasHandle_t, void*, std::size_t);
  cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                            const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                            cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
  cublasStatus_t (*gemm_strided_batched_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                            const void*, const void*, cudaDataType, int, long long, const void*,
                                            cudaDataType, int, long long, const void*, void*, cudaDataType, int,
                                            long long, int, cublasComputeType_t, cublasGemmAlgo_t);
};

// Throws Error naming the library and where it comes from when the system has none. The library stays open.
CublasFunctions load_cublas();

// cuBLAS on one stream, with a workspace of the caller's, so that it takes no memory of its own beyond the budget.
struct Cublas {
  Cublas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  const CublasFunctions functions = load_cublas();
  std::mutex mutex;  // held over a call: a handle is for one thread at a time
  cublasHandle_t handle = nullptr;
};

}  // namespace hayloft::gpu::cuda
