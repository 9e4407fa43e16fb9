#include <cuda_runtime.h>

#include "gpu/cuda/pcie.h"

namespace hayloft::gpu::cuda {

std::string bus_address(int device) {
  char address[32] = {};
  if (cudaDeviceGetPCIBusId(address, sizeof address, device) == cudaSuccess) return address;
  cudaGetLastError();
  return {};
}

}  // namespace hayloft::gpu::cuda
