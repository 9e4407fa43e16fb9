#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <source_location>
#include <stdexcept>

#include "offload/half.h"
#include "simt/kernel.h"
#include "simt/tensor_core.h"

// The shim's half of gpu/cuda/kernels/intrinsics.cuh: the same names with the same meaning, in C++.
#define HAYLOFT_UNROLL

namespace hayloft::gpu::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

inline float widen(f16 x) {
  return to_float(x);
}
inline f16 narrow(float x) {
  return to_f16(x);
}
inline float widen(bf16 x) {
  return to_float(x);
}
inline float2 widen_pair(unsigned bits) {
  return {to_float(f16{static_cast<std::uint16_t>(bits)}), to_float(f16{static_cast<std::uint16_t>(bits >> 16)})};
}
inline unsigned narrow_pair(float low, float high) {
  return to_f16(low).bits | static_cast<unsigned>(to_f16(high).bits) << 16;
}

// A misaligned address is caught by the undefined-behaviour sanitizer.
inline uint4 load16(const void* address) {
  return *static_cast<const uint4*>(address);
}
inline uint4 load16_once(const void* address) {
  simt::require_global(address, "load16_once");
  return *static_cast<const uint4*>(address);
}
inline uint2 load8_once(const void* address) {
  simt::require_global(address, "load8_once");
  return *static_cast<const uint2*>(address);
}
inline unsigned load4_once(const void* address) {
  simt::require_global(address, "load4_once");
  return *static_cast<const unsigned*>(address);
}
inline void store16(void* address, uint4 x) {
  simt::require_global(address, "store16");
  *static_cast<uint4*>(address) = x;
}

inline constexpr bool kLargeShared = true;

inline void copy16_later(void* shared, const void* global) {
  simt::require_global(global, "copy16_later");
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
}
inline void copies_arrived() {}

namespace shim {
// The row of matrix `matrix` that its lane names, as the bytes at its address.
inline const std::uint16_t* matrix_row(const simt::Lanes& rows, int matrix, int row) {
  return rows.value<const std::uint16_t*>(8 * matrix + row);
}
template <bool transposed>
uint4 load_matrices(const void* row, const char* what, std::source_location where) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) throw std::logic_error("a misaligned row of a matrix");
  const simt::Lanes rows = simt::exchange(row, what, where);
  const int at = rows.lane / 4, first = 2 * (rows.lane % 4);
  unsigned words[4];
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int i) -> unsigned {
      return transposed ? matrix_row(rows, m, first + i)[at] : matrix_row(rows, m, at)[first + i];
    };
    words[m] = element(0) | element(1) << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}
}  // namespace shim

inline uint4 load_matrices(const f16* base, int at, std::source_location where = std::source_location::current()) {
  return shim::load_matrices<false>(base + at, "load_matrices", where);
}
inline uint4 load_matrices_transposed(const f16* base, int at,
                                      std::source_location where = std::source_location::current()) {
  return shim::load_matrices<true>(base + at, "load_matrices_transposed", where);
}
inline void add_product(float (&sums)[4], uint4 a, unsigned upper, unsigned lower,
                        std::source_location where = std::source_location::current()) {
  const simt::LaneMatrices own{{a.x, a.y, a.z, a.w}, {upper, lower}};
  const simt::Lanes lanes = simt::exchange(own, "add_product", where);
  simt::add_lane_products(sums, lanes.brought, lanes.lane);
}

template <class T>
[[gnu::always_inline]] inline T shuffle(T x, int lane, std::source_location where = std::source_location::current()) {
  return simt::exchange(x, "shuffle", where).template value<T>(lane % kWarp);
}
template <class T>
[[gnu::always_inline]] inline T shuffle_xor(T x, int mask,
                                            std::source_location where = std::source_location::current()) {
  const simt::Lanes lanes = simt::exchange(x, "shuffle_xor", where);
  return lanes.template value<T>((lanes.lane ^ mask) % kWarp);
}
template <class T>
[[gnu::always_inline]] inline T shuffle_up(T x, int delta,
                                           std::source_location where = std::source_location::current()) {
  const simt::Lanes lanes = simt::exchange(x, "shuffle_up", where);
  return lanes.lane < delta ? x : lanes.template value<T>(lanes.lane - delta);
}
inline unsigned ballot(bool p, std::source_location where = std::source_location::current()) {
  const simt::Lanes lanes = simt::exchange(p, "ballot", where);
  unsigned bits = 0;
  for (int i = 0; i < kWarp; ++i) {
    if ((lanes.existing >> i & 1u) != 0 && lanes.value<bool>(i)) bits |= 1u << i;
  }
  return bits;
}
inline void warp_barrier(std::source_location where = std::source_location::current()) {
  simt::exchange(simt::Brought{}, "warp_barrier", where);
}

// A fiber runs undisturbed between its barriers, so that a plain read and write is atomic.
template <class T>
T atomic_add(T* address, T x) {
  const T before = *address;
  *address = static_cast<T>(before + x);
  return before;
}
template <class T>
T atomic_min(T* address, T x) {
  const T before = *address;
  *address = std::min(before, x);
  return before;
}

// Functions are as far off as a device's may be, by a number that looks random and depends on the argument alone: what
// holds here does not hold thanks to a better library. `exact` off by up to `most` units in its last place.
inline float off_by(float exact, float argument, unsigned most) {
  if (exact == 0 || !(std::fabs(exact) < 1e38f)) return exact;
  const unsigned mixed = (std::bit_cast<unsigned>(argument) ^ most) * 0x9e3779b1u;
  const int off = static_cast<int>((mixed ^ mixed >> 15) * 0x85ebca6bu % (2 * most + 1)) - static_cast<int>(most);
  const unsigned bits = std::bit_cast<unsigned>(exact);
  const int magnitude = static_cast<int>(bits & 0x7fffffffu) + off;
  return std::bit_cast<float>((bits & 0x80000000u) | static_cast<unsigned>(std::max(magnitude, 0)));
}
inline float expf(float x) {  // CUDA's, where kernels say it; the host's code has the library's
  return off_by(std::exp(x), x, 2);
}
inline constexpr float kLog2OfE = 1.4426950408889634f;
inline float fast_exp2(float x) {  // what is below the normal numbers is 0
  const float y = off_by(std::exp2(x), x, 2);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}
inline float fast_exp(float x) {  // likewise
  const float y = off_by(std::exp(x), x, 2 + static_cast<unsigned>(std::min(std::fabs(1.173f * x), 100.0f)));
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}
inline void sin_cos_pi(float x, float* sine, float* cosine) {
  constexpr double pi = 3.14159265358979323846;
  *sine = off_by(static_cast<float>(std::sin(pi * x)), x, 2);
  *cosine = off_by(static_cast<float>(std::cos(pi * x)), x, 2);
}
inline float rounded_product(float x, float y) {
  volatile float product = x * y;
  return product;
}
inline int count_bits(unsigned x) {
  return std::popcount(x);
}
inline unsigned rotate_right(unsigned x, int by) {
  return std::rotr(x, by % 32);
}
template <bool kSigned>
int byte_of(unsigned bytes, int place) {
  const auto byte = static_cast<std::uint8_t>(bytes >> (8 * place) & 0xffu);
  return kSigned ? static_cast<std::int8_t>(byte) : byte;
}
template <int kFirst, bool kSigned>
int add_products(unsigned pair, unsigned bytes, int sum) {
  return sum + static_cast<std::int16_t>(pair & 0xffffu) * byte_of<kSigned>(bytes, kFirst) +
         static_cast<std::int16_t>(pair >> 16) * byte_of<kSigned>(bytes, kFirst + 1);
}
inline unsigned pick_bytes(unsigned low, unsigned high, unsigned which) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned x = 0;
  for (int j = 0; j < 4; ++j) x |= static_cast<unsigned>(bytes >> (which >> (4 * j) & 7u) * 8 & 0xffu) << (8 * j);
  return x;
}
inline unsigned bits_of(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float float_of(unsigned bits) {
  return std::bit_cast<float>(bits);
}

inline std::uint64_t nanoseconds() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

inline int opaque(int x) {
  return x;
}

inline unsigned char* dynamic_shared() {
  return simt::dynamic_shared();
}

}  // namespace hayloft::gpu::cuda
