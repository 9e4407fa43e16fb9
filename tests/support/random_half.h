#pragma once

#include <cstdint>
#include <random>

#include "offload/half.h"

namespace hayloft::test {

// Returns sixteen random bits as a half: any number, an infinity or NaN.
inline f16 any_half(std::mt19937& random) {
  return {static_cast<std::uint16_t>(random())};
}

}  // namespace hayloft::test
