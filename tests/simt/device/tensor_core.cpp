#include "simt/tensor_core.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

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

// Returns x as an f32, cut off.
float narrow(double x) {
  const double magnitude = std::fabs(x);
  return static_cast<float>(magnitude > 0 && magnitude < kFinite ? cut_off(x, magnitude) : x);
}

// Returns sum + a . b of `elements` numbers, kStep at most.
float add_step(float sum, const double* a, const double* b, std::int64_t elements) {
  double products[kStep] = {};
  for (std::int64_t i = 0; i < elements; ++i) products[i] = a[i] * b[i];
  double largest = std::fabs(sum);
  for (const double x : products) largest = std::max(largest, std::fabs(x));
  if (!(largest > 0 && largest < kFinite)) largest = 1;  // nothing to cut off, or infinity and NaN
  double total = 0;
  for (const double x : products) total += cut_off(x, largest);
  return narrow(sum + total);
}

// Eight numbers to be added at once.
using Floats [[gnu::vector_size(32)]] = float;
using Ints [[gnu::vector_size(32)]] = std::int32_t;

std::int32_t largest_of(const Ints& x) {
  Ints top = x, other = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  top = top > other ? top : other, other = __builtin_shufflevector(top, top, 2, 3, 0, 1, 6, 7, 4, 5);
  top = top > other ? top : other;
  return std::max(top[0], top[1]);
}

std::int32_t sum_of(const Ints& x) {
  Ints sum = x + __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5);
  return sum[0] + sum[1];
}

// Returns what add_step() does of kStep numbers whose products are exact in f32, as those of f16 are. A conversion to
// integers, whose sum is exact, cuts off.
float add_exact_step(float sum, const float* a, const float* b) {
  Floats x, y;
  std::memcpy(&x, a, sizeof x), std::memcpy(&y, b, sizeof y);
  const Floats products = x * y;
  Ints magnitudes;
  std::memcpy(&magnitudes, &products, sizeof magnitudes), magnitudes &= 0x7fffffff;
  const std::int32_t top = std::max(std::bit_cast<std::int32_t>(sum) & 0x7fffffff, largest_of(magnitudes));
  if (top == 0) return sum + 0.0F;
  constexpr std::int32_t exponent = 1 << 23;  // its lowest bit
  if (top < 27 * exponent || top >= 253 * exponent) {
    // Powers of two are needed here that are no normal f32; or there is infinity or NaN.
    double wide[2][kStep];
    for (std::int64_t i = 0; i < kStep; ++i) wide[0][i] = a[i], wide[1][i] = b[i];
    return add_step(sum, wide[0], wide[1], kStep);
  }
  const std::int32_t power = top & 0x7f800000;
  // 2^23 over the power of two below the largest
  const auto scale = std::bit_cast<float>((277U << 23) - static_cast<std::uint32_t>(power));
  const Ints places = __builtin_convertvector(products * scale, Ints);
  return narrow(sum + sum_of(places) * (static_cast<double>(std::bit_cast<float>(power)) * 0x1p-23));
}

// Writes the eight f16 that the registers kRegister of four lanes from `first` on hold, the lower of each first.
template <int kRegister>
void widen(const Brought* first, float* to) {
  std::array<unsigned, 4> registers;
  for (std::size_t i = 0; i < registers.size(); ++i) {
    registers[i] = static_cast<unsigned>(first[i].words[kRegister / 2] >> (kRegister % 2 * 32));
  }
#ifdef __F16C__
  _mm256_storeu_ps(to, _mm256_cvtph_ps(std::bit_cast<__m128i>(registers)));
#else
  for (std::size_t i = 0; i < registers.size(); ++i) {
    to[2 * i] = to_float(f16{static_cast<std::uint16_t>(registers[i])});
    to[2 * i + 1] = to_float(f16{static_cast<std::uint16_t>(registers[i] >> 16)});
  }
#endif
}

}  // namespace

float add_up(float sum, const double* a, const double* b, std::int64_t elements) {
  for (std::int64_t begin = 0; begin < elements; begin += kStep) {
    sum = add_step(sum, a + begin, b + begin, std::min(kStep, elements - begin));
  }
  return sum;
}

float add_up_halves(float sum, const float* a, const float* b, std::int64_t elements) {
  for (std::int64_t begin = 0; begin < elements; begin += kStep) sum = add_exact_step(sum, a + begin, b + begin);
  return sum;
}

void add_lane_products(float (&sums)[4], const Brought* brought, int lane) {
  const Brought* const rows = brought + lane / 4 * 4;
  const Brought* const columns = brought + lane % 4 * 8;
  float a[2][16], b[2][16];
  widen<0>(rows, a[0]), widen<2>(rows, a[0] + 8);
  widen<1>(rows, a[1]), widen<3>(rows, a[1] + 8);
  for (int i = 0; i < 2; ++i) widen<4>(columns + 4 * i, b[i]), widen<5>(columns + 4 * i, b[i] + 8);
  for (int i = 0; i < 4; ++i) sums[i] = add_up_halves(sums[i], a[i / 2], b[i % 2], 16);
}

}  // namespace hayloft::simt
