#include "gpu/cuda/device.cuh"

namespace hayloft::gpu::cuda {

void require_device() {
  int count = 0;
  HAYLOFT_CUDA(cudaGetDeviceCount(&count));
  if (count == 0) check(cudaErrorNoDevice, "cudaGetDeviceCount");
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  HAYLOFT_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

PcieLink pcie_link_of(int device) {
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  return pcie_link(bus);
}

}  // namespace hayloft::gpu::cuda
