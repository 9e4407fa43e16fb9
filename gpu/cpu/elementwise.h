#pragma once

#include <cstdint>

#include "gpu/backend.h"

// SIMD loops over activations: single-threaded, called from the parallel operations on pieces of their work.
namespace hayloft::gpu {

// n elements of any dtype but packed to f32, exactly.
void widen(const void* from, DType type, std::int64_t n, float* to);

// n floats to f16, rounded to nearest even.
void narrow(const float* from, std::int64_t n, f16* to);

// y = x / sqrt(mean(x^2) + eps) * weight over one row of n; x and y may be the same.
void rms_norm_row(const float* x, int n, const float* weight, float eps, float* y);

void add_to(float* y, const float* x, std::int64_t n);             // y += x
void silu_mul_to(float* gate, const float* up, std::int64_t n);    // gate = gate / (1 + exp(-gate)) * up
void sigmoid_mul_to(float* x, const float* gate, std::int64_t n);  // x = x / (1 + exp(-gate))
void gelu_mul_to(float* gate, const float* up, std::int64_t n);    // gate = gelu(gate) * up, by Backend::gelu_mul
void scale_by(float* x, float factor, std::int64_t n);             // x *= factor
void soft_cap_to(float* x, float cap, std::int64_t n);             // by Backend::soft_cap
void clamped_mul_to(float* gate, const float* up, float limit, std::int64_t n);  // by Backend::clamped_mul
bool any_nonfinite(const float* x, std::int64_t n);

// Rotates one head: components i and i + half by the angle with the given cosines and sines, f32 [half].
void rotate_head(float* x, int half, const float* cosine, const float* sine);

}  // namespace hayloft::gpu
