#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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
};

// A library that was opened, and stays so.
struct CublasLibrary {
  const void* opened = nullptr;  // the same for two names of one file
  int version = 0;               // as CUDA writes it, 13000; 0: it does not say
  CublasFunctions functions;
};

// Returns the names to look for cuBLAS by, for these versions of the runtime and of CUDA that the driver speaks: first
// the runtime's own version, last what is newer than the driver, which hardly starts.
std::vector<std::string> cublas_names(int runtime, int driver);

// Returns nothing, and why, when there is no such library.
std::optional<CublasLibrary> open_cublas(const std::string& name, std::string& why);

// cuBLAS on one stream, with a workspace of the caller's, so that it takes no memory of its own beyond the budget.
struct Cublas {
  // Takes the first library of cublas_names() that starts. Throws Error, naming what was found, the versions that do
  // not fit together and what to install, when none does.
  Cublas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  CublasFunctions functions;
  std::mutex mutex;  // held over a call: a handle is for one thread at a time
  cublasHandle_t handle = nullptr;
};

}  // namespace hayloft::gpu::cuda
