#include "gpu/cuda/api/device.h"

#include "gpu/cuda/api/refuse.h"

namespace hayloft::gpu::cuda {

void require_device(int device) {
  int count = 0;
  HAYLOFT_CUDA(cudaGetDeviceCount(&count));
  if (count == 0) check(cudaErrorNoDevice, "cudaGetDeviceCount");
  if (device >= 0 && device < count) return;
  refuse("--device cuda:", device, ": this process sees ", count,
         count == 1 ? " device, cuda:0" : " devices, cuda:0 to cuda:", count == 1 ? "" : std::to_string(count - 1),
         " (look at hayloft --list-devices and CUDA_VISIBLE_DEVICES)");
}

cudaError_t use_device(int device) noexcept {
  int current = -1;
  const cudaError_t result = cudaGetDevice(&current);
  return result == cudaSuccess && current == device ? result : cudaSetDevice(device);
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
