#include "gpu/cuda/api/device.h"

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

std::string bus_address(int device) {
  char address[32] = {};
  if (cudaDeviceGetPCIBusId(address, sizeof address, device) == cudaSuccess) return address;
  cudaGetLastError();
  return {};
}

PcieLink pcie_link_of(int device) {
  const std::string address = bus_address(device);
  return address.empty() ? PcieLink{} : pcie_link(address);
}

}  // namespace hayloft::gpu::cuda
