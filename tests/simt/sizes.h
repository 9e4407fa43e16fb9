#pragma once

#include <cstdint>

namespace hayloft {

inline constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

}  // namespace hayloft
