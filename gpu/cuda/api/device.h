#pragma once

#include <string>

#include "gpu/cuda/api/check.h"
#include "gpu/cuda/api/pcie.h"

// Asks CUDA and the system about a device.
namespace hayloft::gpu::cuda {

// Throws NoDevice, saying why, unless this process sees a device, and Error unless this is one of them.
void require_device(int device);

// Makes the device the calling thread's, as CUDA asks of every thread that launches, allocates or records on it; it
// stays so. Nothing else is done when it is that already.
cudaError_t use_device(int device) noexcept;

int attribute(cudaDeviceAttr which, int device);

// Returns the device's place on the bus, "0000:3B:00.0", which nvidia-smi and sysfs know it by whatever CUDA numbers
// it; empty where CUDA does not tell.
std::string bus_address(int device);

// All unknown when CUDA does not say where the device is.
PcieLink pcie_link_of(int device);

}  // namespace hayloft::gpu::cuda
