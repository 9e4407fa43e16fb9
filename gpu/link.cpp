#include "gpu/link.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace hayloft::gpu {

std::string driver_version_in(const std::string& text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
  std::istringstream line(text.substr(0, text.find('\n')));
  for (std::string word; line >> word;) {
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

double pcie_rate(int generation, int lanes) {
  // 10^9 transfers per second and lane, and the share of bits that is data: 8b/10b, 128b/130b, flits.
  struct Generation {
    double transfers;
    double data;
  };
  constexpr Generation generations[] = {{2.5, 0.8},        {5, 0.8},          {8, 128.0 / 130},
                                        {16, 128.0 / 130}, {32, 128.0 / 130}, {64, 242.0 / 256}};
  if (generation < 1 || lanes < 1) return 0;
  const auto& g = generations[std::min<std::size_t>(static_cast<std::size_t>(generation), std::size(generations)) - 1];
  return g.transfers * g.data * lanes / 8;
}

}  // namespace hayloft::gpu
