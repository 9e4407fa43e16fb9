#include "gpu/link.h"

#include <algorithm>
#include <iterator>

namespace hayloft::gpu {

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
