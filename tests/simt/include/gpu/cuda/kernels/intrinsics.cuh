#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <source_location>

#include "offload/half.h"
#include "simt/kernel.h"

// The shim's half of gpu/cuda/kernels/intrinsics.cuh: the same names with the same meaning, in C++.
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

template <class T>
T shuffle(T x, int lane, std::source_location where = std::source_location::current()) {
  return simt::exchange(x, "shuffle", where).template value<T>(lane % kWarp);
}
template <class T>
T shuffle_xor(T x, int mask, std::source_location where = std::source_location::current()) {
  const simt::Lanes lanes = simt::exchange(x, "shuffle_xor", where);
  return lanes.template value<T>((lanes.lane ^ mask) % kWarp);
}
template <class T>
T shuffle_up(T x, int delta, std::source_location where = std::source_location::current()) {
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
  simt::exchange(nullptr, 0, "warp_barrier", where);
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
inline float fast_exp(float x) {  // what is below the normal numbers is 0
  const float y = off_by(std::exp(x), x, 2 + static_cast<unsigned>(std::min(std::fabs(1.173f * x), 100.0f)));
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}
inline void sin_cos_pi(float x, float* sine, float* cosine) {
  constexpr double pi = 3.14159265358979323846;
  *sine = off_by(static_cast<float>(std::sin(pi * x)), x, 2);
  *cosine = off_by(static_cast<float>(std::cos(pi * x)), x, 2);
}
inline int count_bits(unsigned x) {
  return std::popcount(x);
}
inline unsigned rotate_right(unsigned x, int by) {
  return std::rotr(x, by % 32);
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

inline unsigned char* dynamic_shared() {
  return simt::dynamic_shared();
}

}  // namespace hayloft::gpu::cuda
