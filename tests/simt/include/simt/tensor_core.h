#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace hayloft::simt {

// Returns x without what lies below `unit`, a power of two.
inline double cut_off(double x, double unit) {
  return std::trunc(x / unit) * unit;
}

// Returns sum + a . b, off by as much as tensor cores may be: some products at a time are added to an f32, and of each
// of them what the largest of these, as an f32, does not hold is cut off instead of rounded (Fasi et al., "Numerical
// behavior of NVIDIA tensor cores", 2021; an H100 has so lost products of 2^-26 of the sum).
inline float add_up(float sum, const double* a, const double* b, std::int64_t elements) {
  constexpr std::int64_t step = 8;
  for (std::int64_t begin = 0; begin < elements; begin += step) {
    const std::int64_t end = std::min(begin + step, elements);
    double largest = std::fabs(sum);
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(a[i] * b[i]));
    if (!(largest > 0 && largest < 1e38)) largest = 1;  // nothing to cut off, or infinity and NaN, which stay
    const double unit = std::ldexp(1, std::ilogb(largest) - 23);
    double exact = sum;
    for (std::int64_t i = begin; i < end; ++i) exact += cut_off(a[i] * b[i], unit);
    const double last = std::fabs(exact) > 0 && std::fabs(exact) < 1e38 ? std::ldexp(1, std::ilogb(exact) - 23) : 0;
    sum = static_cast<float>(last > 0 ? cut_off(exact, last) : exact);
  }
  return sum;
}

}  // namespace hayloft::simt
