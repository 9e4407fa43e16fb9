#include "gpu/cuda/api/cublas.h"

// In the place of gpu/cuda/api/cublas_loader.cpp, which opens the system's library.
namespace hayloft::gpu::cuda {

CublasFunctions load_cublas() {
  return {cublasCreate, cublasDestroy, cublasSetStream, cublasSetWorkspace, cublasGemmEx, cublasGemmStridedBatchedEx};
}

}  // namespace hayloft::gpu::cuda
