#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "offload/half.h"

// Everything in the kernels that is an instruction of the machine rather than C++, behind names. The kernels use these
// and CUDA's own words (__global__, __shared__, threadIdx, __syncthreads ...) and nothing else, so that the same
// source compiles against the shim in tests/simt, which has a file of this name of its own and comes first in the
// include path there. A warp is 32 threads; the warp functions are called by all of them, converged.
// Before a loop whose arrays are to be registers.
#define HAYLOFT_UNROLL _Pragma("unroll")

namespace hayloft::gpu::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

__device__ inline float widen(f16 x) {
  return __half2float(__ushort_as_half(x.bits));
}
__device__ inline f16 narrow(float x) {  // to nearest even; overflow becomes infinity
  return {__half_as_ushort(__float2half_rn(x))};
}
__device__ inline float widen(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
// Two f16 in one word, the first in the low half.
__device__ inline float2 widen_pair(unsigned bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ inline unsigned narrow_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Loads of 16 aligned bytes: from any memory, through the caches; and from global memory only, which is the device's
// and what it sees of the host's, past L1 without staying in it, for host memory and for what is read once. They
// clobber no "memory": what they read does not change while their kernel runs, so that their order among other accesses
// means nothing, and a barrier at each would have values that are in registers loaded again.
__device__ inline uint4 load16(const void* address) {
  return *static_cast<const uint4*>(address);
}
__device__ inline uint4 load16_once(const void* address) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(address));
  return x;
}
// The same for 8 and 4 aligned bytes.
__device__ inline uint2 load8_once(const void* address) {
  uint2 x;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(address));
  return x;
}
__device__ inline unsigned load4_once(const void* address) {
  unsigned x;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(address));
  return x;
}
// 16 aligned bytes to global memory. As an instruction of its own: of an assignment the compiler may make four stores,
// each of which touches every piece of memory that all of them would.
__device__ inline void store16(void* address, uint4 x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

// Says whether multiprocessors of this architecture may have more shared memory than 64 KiB.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr bool kLargeShared = false;
#else
inline constexpr bool kLargeShared = true;
#endif

// Copies 16 aligned bytes from global to shared memory, at the latest when the thread has come to copies_arrived(); for
// others to see them takes a barrier behind it. In the background from compute capability 8.0 on.
__device__ inline unsigned shared_address(const void* address) {
  return static_cast<unsigned>(__cvta_generic_to_shared(address));
}
__device__ inline void copy16_later(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared_address(shared)), "l"(global) : "memory");
#else
  *static_cast<uint4*>(shared) = load16(global);
#endif
}
__device__ inline void copies_arrived() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

// Tensor cores. Four matrices of 8 x 8 f16 in shared memory, each row 16 aligned bytes: lane 8 m + r names row r of
// matrix m, `at` f16 behind `base`. A lane gets of each matrix, in one word, elements 2 (lane % 4) and the next of row
// lane / 4; of the transposed matrices, of column lane / 4.
__device__ inline uint4 load_matrices(const f16* base, int at) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(shared_address(base) + 2 * at));
  return x;
}
__device__ inline uint4 load_matrices_transposed(const f16* base, int at) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(shared_address(base) + 2 * at));
  return x;
}
// sums += a b for matrices a [16][16] and b [16][8] of f16: a in quarters, those of rows 0 to 7 before those of rows 8
// to 15 and left ones before right ones, each as load_matrices() gives it; b in halves, the upper one first, transposed
// likewise. A lane has sums of rows lane / 4 and, behind them, lane / 4 + 8, columns 2 (lane % 4) and the next. What is
// added at a time and how f32 holds it are the device's.
__device__ inline void add_product(float (&sums)[4], uint4 a, unsigned upper, unsigned lower) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(upper), "r"(lower));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(upper));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.z), "r"(a.w), "r"(lower));
#endif
}

template <class T>
__device__ inline T shuffle(T x, int lane) {  // the value that `lane` holds
  return __shfl_sync(kFullWarp, x, lane);
}
template <class T>
__device__ inline T shuffle_xor(T x, int mask) {
  return __shfl_xor_sync(kFullWarp, x, mask);
}
template <class T>
__device__ inline T shuffle_up(T x, int delta) {  // the value `delta` lanes below; its own in the lowest lanes
  return __shfl_up_sync(kFullWarp, x, delta);
}
__device__ inline unsigned ballot(bool p) {
  return __ballot_sync(kFullWarp, p);
}
__device__ inline void warp_barrier() {
  __syncwarp();
}

// Return what was there before.
template <class T>
__device__ inline T atomic_add(T* address, T x) {
  return atomicAdd(address, x);
}
template <class T>
__device__ inline T atomic_min(T* address, T x) {
  return atomicMin(address, x);
}

// 2^x to 2 units in the last place; results below 2^-126 are 0, which a sum that has a term of 1 does not see.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// exp(x) to 2 + 1.173 |x| units in the last place, as __expf (CUDA C++ Programming Guide, "Intrinsic Functions"), of
// which it is the two instructions: the rounding of x log2(e) is an error of |x| 2^-24 of the result, and that of ex2
// 2^-22 at most. From x = -87.34 on results are 0, where __expf spends three instructions more on denormals.
inline constexpr float kLog2OfE = 1.4426950408889634f;
__device__ inline float fast_exp(float x) {
  return fast_exp2(x * kLog2OfE);
}
// sin(pi x) and cos(pi x), each within 2 units in the last place.
__device__ inline void sin_cos_pi(float x, float* sine, float* cosine) {
  sincospif(x, sine, cosine);
}
// Returns x y, rounded before anything is added to it.
__device__ inline float rounded_product(float x, float y) {
  return __fmul_rn(x, y);
}
__device__ inline int count_bits(unsigned x) {
  return __popc(x);
}
__device__ inline unsigned rotate_right(unsigned x, int by) {  // by the low five bits of it
  return __funnelshift_r(x, x, by);
}
// Returns `sum` and the products of the two 16-bit integers of `pair`, the first in the low half, with bytes kFirst and
// kFirst + 1 of `bytes`, where kFirst is 0 or 2: numbers with signs, or from 0 to 255.
template <int kFirst, bool kSigned>
__device__ inline int add_products(unsigned pair, unsigned bytes, int sum) {
  static_assert(kFirst == 0 || kFirst == 2);
  if constexpr (kFirst == 0 && kSigned) {
    asm("dp2a.lo.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(bytes));
  } else if constexpr (kFirst == 0) {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(bytes));
  } else if constexpr (kSigned) {
    asm("dp2a.hi.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(bytes));
  } else {
    asm("dp2a.hi.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(bytes));
  }
  return sum;
}
// Returns, as byte j, the byte of `low` and `high` behind it that digit j of `which`, 0 to 7 in hexadecimal, names.
__device__ inline unsigned pick_bytes(unsigned low, unsigned high, unsigned which) {
  unsigned x;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(low), "r"(high), "r"(which));
  return x;
}
__device__ inline unsigned bits_of(float x) {
  return __float_as_uint(x);
}
__device__ inline float float_of(unsigned bits) {
  return __uint_as_float(bits);
}

// Reads a clock that may be coarse, up to a millisecond. Loads and stores before it stay before it: it ends waits.
__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time) : : "memory");
  return time;
}

// Returns x, of which the compiler then knows nothing: what is computed of it in a loop is not kept in registers around
// the loop instead.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The block's dynamic shared memory, 16-byte aligned; as many bytes as the launch asked for.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

}  // namespace hayloft::gpu::cuda
