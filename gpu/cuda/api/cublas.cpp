#include "gpu/cuda/api/cublas.h"

namespace hayloft::gpu::cuda {

Cublas::Cublas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes) {
  HAYLOFT_CUDA(functions.create(&handle));
  // In this order: setting the stream resets the workspace.
  cublasStatus_t set = functions.set_stream(handle, stream);
  if (set == CUBLAS_STATUS_SUCCESS) set = functions.set_workspace(handle, workspace, workspace_bytes);
  if (set != CUBLAS_STATUS_SUCCESS) functions.destroy(handle);
  check(set, "cublasSetStream, cublasSetWorkspace");
}

Cublas::~Cublas() {
  functions.destroy(handle);
}

}  // namespace hayloft::gpu::cuda
