#pragma once

#include "gpu/cuda/check.cuh"
#include "gpu/cuda/pcie.h"

// What CUDA and the system say of a device.
namespace hayloft::gpu::cuda {

// Throws NoDevice, saying why, unless this process sees a device.
void require_device();

int attribute(cudaDeviceAttr which, int device);

// All unknown when CUDA does not say where the device is.
PcieLink pcie_link_of(int device);

}  // namespace hayloft::gpu::cuda
