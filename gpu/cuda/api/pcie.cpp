#include "gpu/cuda/api/pcie.h"

#include <cctype>
#include <fstream>

namespace hayloft::gpu::cuda {

PcieLink pcie_link(std::string bus_address) {
  for (char& c : bus_address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string folder = "/sys/bus/pci/devices/" + bus_address + "/";
  PcieLink link;
  if (std::ifstream file(folder + "numa_node"); !(file >> link.node)) link.node = -1;
  if (std::ifstream file(folder + "max_link_width"); !(file >> link.lanes)) link.lanes = 0;
  double transfers = 0;  // 10^9 per second and lane: 2.5, 5, 8, 16, ... ("16.0 GT/s PCIe")
  if (std::ifstream file(folder + "max_link_speed"); file >> transfers) {
    for (const double rate : {2.5, 5.0, 8.0, 16.0, 32.0, 64.0}) link.generation += transfers >= rate;
  }
  return link;
}

}  // namespace hayloft::gpu::cuda
