#pragma once

#include <string>

namespace hayloft::gpu::cuda {

struct PcieLink {
  int generation = 0;  // at its most; 0: the system does not tell
  int lanes = 0;
  int node = -1;  // NUMA node; -1: there is one, or the system does not tell
};

// Returns what sysfs knows of the device at a bus address as CUDA writes it, "0000:3B:00.0".
PcieLink pcie_link(std::string bus_address);

}  // namespace hayloft::gpu::cuda
