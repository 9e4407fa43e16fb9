#include "gpu/cuda/cublas.cuh"

// In the place of gpu/cuda/cublas_loader.cu, which opens the system's library.
namespace hayloft::gpu::cuda {

CublasFunctions load_cublas() {
  return {cublasCreate, cublasDestroy, cublasSetStream, cublasSetWorkspace, cublasGemmEx, cublasGemmStridedBatchedEx};
}

}  // namespace hayloft::gpu::cuda
