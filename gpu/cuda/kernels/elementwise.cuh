#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/warp.cuh"

// Shared by the kernels that treat every element alike.
namespace hayloft::gpu::cuda {

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t all_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float widen(float x) {
  return x;
}

// Loads four floats whose address is a multiple of 16.
__device__ inline void load_four(const float* from, float* to) {
  const uint4 bits = load16(from);
  to[0] = float_of(bits.x), to[1] = float_of(bits.y), to[2] = float_of(bits.z), to[3] = float_of(bits.w);
}

__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));  // never overflows: for x < 0 the sigmoid is e / (1 + e) instead of 1 / (1 + e)
  return (x < 0 ? e : 1.0f) / (1 + e);
}

__device__ inline bool finite_number(float x) {
  return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

inline constexpr int kMostThreads = 1024;  // of a block
inline constexpr int kNormHeld = 4;        // elements that a thread keeps between the two passes of a norm

// Returns the threads of the block that norms a row of n: one for kNormHeld elements, as far as a block has so many.
inline unsigned norm_threads(int n) {
  const int wanted = (n + kNormHeld * kWarp - 1) / (kNormHeld * kWarp);
  return static_cast<unsigned>((wanted < kMostThreads / kWarp ? wanted : kMostThreads / kWarp) * kWarp);
}

// Writes a row under its RMS norm, by all threads of its block. take(i) gives element i, once, of which `again` may
// then be read. scratch: block_sum()'s.
template <class Take>
__device__ inline void norm_row(const float* again, const Take& take, int n, const float* weight, float eps, float* y,
                                float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float held[kNormHeld], factors[kNormHeld];
  for (int j = 0; j < kNormHeld; ++j) {
    const int i = thread + j * threads;
    held[j] = i < n ? take(i) : 0.0f;
    factors[j] = i < n ? weight[i] : 0.0f;
  }
  float squares = 0;
  for (int j = 0; j < kNormHeld; ++j) squares += held[j] * held[j];
  for (int i = thread + kNormHeld * threads; i < n; i += threads) {
    const float x = take(i);
    squares += x * x;
  }
  const float scale = 1 / sqrtf(block_sum(squares, scratch) / static_cast<float>(n) + eps);
  for (int j = 0; j < kNormHeld; ++j) {
    const int i = thread + j * threads;
    if (i < n) y[i] = held[j] * scale * factors[j];
  }
  for (int i = thread + kNormHeld * threads; i < n; i += threads) y[i] = again[i] * scale * weight[i];
}

// The turn of a pair of components, as rope() has it. The angle is in double until what is left of it is below one
// turn, so that a position of a million is as exact as position one; half a turn then costs half a unit in f32's last
// place of it.
struct Turn {
  float sine, cosine;

  __device__ float2 of(float a, float b) const { return {a * cosine - b * sine, b * cosine + a * sine}; }
};
__device__ inline Turn turn_at(std::int64_t position, float inverse_frequency, float magnitude) {
  constexpr double half_turns = 0.31830988618379067154;  // 1 / pi
  const double angle = static_cast<double>(position) * static_cast<double>(inverse_frequency) * half_turns;
  Turn turn;
  sin_cos_pi(static_cast<float>(angle - 2 * rint(angle / 2)), &turn.sine, &turn.cosine);
  turn.sine *= magnitude;
  turn.cosine *= magnitude;
  return turn;
}

}  // namespace hayloft::gpu::cuda
