#include "tests/simt/ptx/opcodes/approximation.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace hayloft::simt::ptx {
namespace {

unsigned most = 0;  // set between launches; kernels run on one processor thread

}  // namespace

unsigned approximation_ulp() {
  return most;
}
void set_approximation_ulp(unsigned ulp) {
  most = ulp;
}

float approximately(float exact, float argument) {
  if (most == 0 || !(std::fabs(exact) > 1e-36f && std::fabs(exact) < 1e38f) || exact == 1) return exact;
  const std::uint32_t mixed = (std::bit_cast<std::uint32_t>(argument) ^ most) * 0x9e3779b1u;
  const std::uint32_t off = (mixed ^ mixed >> 15) * 0x85ebca6bu % (2 * most + 1);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(exact) + off - most);
}

}  // namespace hayloft::simt::ptx
