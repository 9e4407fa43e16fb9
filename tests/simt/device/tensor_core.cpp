#include "simt/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "offload/half.h"

namespace hayloft::simt {
namespace {

constexpr std::int64_t kStep = 8;  // products that are added to a sum at once
constexpr double kFinite = 1e38;   // above it a sum is infinite, or NaN, and stays so

// Returns the largest power of two that is not above x, a positive normal number.
double power_below(double x) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & 0x7ff0000000000000u);
}

// Returns x without what lies below the last place of an f32 as large as `largest`.
double cut_off(double x, double largest) {
  const double power = power_below(largest);
  return std::trunc(x * (0x1p23 / power)) * (power * 0x1p-23);
}

// Returns sum + a . b of `elements` numbers, kStep at most.
float add_step(float sum, const double* a, const double* b, std::int64_t elements) {
  double products[kStep] = {};
  for (std::int64_t i = 0; i < elements; ++i) products[i] = a[i] * b[i];
  double largest = std::fabs(sum);
  for (const double x : products) largest = std::max(largest, std::fabs(x));
  if (!(largest > 0 && largest < kFinite)) largest = 1;  // nothing to cut off, or infinity and NaN
  double exact = sum;
  for (const double x : products) exact += cut_off(x, largest);
  const double magnitude = std::fabs(exact);
  return static_cast<float>(magnitude > 0 && magnitude < kFinite ? cut_off(exact, magnitude) : exact);
}

void widen_pair(unsigned word, double* to) {
  to[0] = to_float(f16{static_cast<std::uint16_t>(word)});
  to[1] = to_float(f16{static_cast<std::uint16_t>(word >> 16)});
}

}  // namespace

float add_up(float sum, const double* a, const double* b, std::int64_t elements) {
  for (std::int64_t begin = 0; begin < elements; begin += kStep) {
    sum = add_step(sum, a + begin, b + begin, std::min(kStep, elements - begin));
  }
  return sum;
}

void add_lane_products(float (&sums)[4], const uint4 (&rows)[4], const uint2 (&columns)[2][4]) {
  double a[2][16], b[2][16];
  for (int i = 0; i < 4; ++i) {
    widen_pair(rows[i].x, a[0] + 2 * i), widen_pair(rows[i].z, a[0] + 8 + 2 * i);
    widen_pair(rows[i].y, a[1] + 2 * i), widen_pair(rows[i].w, a[1] + 8 + 2 * i);
    for (int c = 0; c < 2; ++c) {
      widen_pair(columns[c][i].x, b[c] + 2 * i), widen_pair(columns[c][i].y, b[c] + 8 + 2 * i);
    }
  }
  for (int i = 0; i < 4; ++i) sums[i] = add_up(sums[i], a[i / 2], b[i % 2], 16);
}

}  // namespace hayloft::simt
