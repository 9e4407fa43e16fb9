#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "simt/vectors.h"

// Defines the words of a kernel's source as C++. Each CUDA thread is a fiber of one processor thread, so that the words
// below need no locks; tests/simt/device/machine.h runs the fibers.
#define __global__
#define __device__
#define __host__
#define __constant__ static
// Blocks run one after another. The mark in its name is how the machine finds the variable, to fill it with NaN before
// each block.
#define __shared__ static __attribute__((abi_tag("simt_shared")))
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))

// The index of the thread that is running.
inline uint3 threadIdx{};
inline uint3 blockIdx{};
inline dim3 blockDim;
inline dim3 gridDim;
inline constexpr int warpSize = 32;

// CUDA's own min and max, for two of one type, and the functions of <cmath> that only CUDA has.
#define HAYLOFT_SIMT_MIN_MAX(type)  \
  inline type min(type a, type b) { \
    return b < a ? b : a;           \
  }                                 \
  inline type max(type a, type b) { \
    return a < b ? b : a;           \
  }
HAYLOFT_SIMT_MIN_MAX(int)
HAYLOFT_SIMT_MIN_MAX(unsigned)
HAYLOFT_SIMT_MIN_MAX(long)
HAYLOFT_SIMT_MIN_MAX(unsigned long)
HAYLOFT_SIMT_MIN_MAX(long long)
HAYLOFT_SIMT_MIN_MAX(unsigned long long)
#undef HAYLOFT_SIMT_MIN_MAX
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}

namespace hayloft::simt {

// Holds what a lane brings to a warp function.
struct Brought {
  std::uint64_t words[3];

  template <class T>
  [[gnu::always_inline]] static Brought of(const T& x) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof words);
    Brought brought{};
    std::memcpy(brought.words, &x, sizeof x);
    return brought;
  }
};

// The values that the lanes of a warp brought to a warp function.
struct Lanes {
  const Brought* brought;  // [32]; all bits set for a lane that does not exist
  unsigned existing;       // bit per lane
  int lane;                // of the caller

  template <class T>
  [[gnu::always_inline]] T value(int i) const {
    T x;
    std::memcpy(&x, brought[i].words, sizeof x);
    return x;
  }
};

// Waits until every thread of the block is at this very call. A launch in which some never come ends with an error.
void block_barrier(std::source_location where);

// Waits until every lane of the warp (the last one may have fewer than 32) is at this very call.
Lanes exchange(Brought brought, const char* what, std::source_location where);

template <class T>
[[gnu::always_inline]] inline Lanes exchange(const T& x, const char* what, std::source_location where) {
  return exchange(Brought::of(x), what, where);
}

unsigned char* dynamic_shared();

// Throws where an instruction that knows global memory only (device memory, and the host's as the device sees it) is
// given an address in the block's shared memory.
void require_global(const void* address, const char* what);

}  // namespace hayloft::simt

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  hayloft::simt::block_barrier(where);
}

// Memory has one order here.
inline void __threadfence() {}
