#include "gpu/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// body(i, part): `part` elements from i on, a whole vector except at the end.
template <class Body>
HWY_INLINE void for_each_vector(F32 d, std::int64_t n, const Body& body) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, static_cast<std::size_t>(lanes));
  if (i < n) body(i, static_cast<std::size_t>(n - i));
}

template <class T>
HWY_INLINE F32Vec load_up_to(F32 d, const T* p, std::size_t part) {
  return part == hn::Lanes(d) ? load(d, p) : load_part(d, p, part);
}

template <class T>
void widen_typed(const T* from, std::int64_t n, float* to) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    store_part(d, load_up_to(d, from + i, part), part, to + i);
  });
}

void widen_simd(const void* from, DType type, std::int64_t n, float* to) {
  switch (type) {
    case DType::f32:
      return widen_typed(static_cast<const float*>(from), n, to);
    case DType::f16:
      return widen_typed(static_cast<const f16*>(from), n, to);
    case DType::bf16:
      return widen_typed(static_cast<const bf16*>(from), n, to);
    case DType::packed:  // not a row of elements
      break;
  }
}

void narrow_simd(const float* from, std::int64_t n, f16* to) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    store_part(d, load_up_to(d, from + i, part), part, to + i);
  });
}

void rms_norm_row_simd(const float* x, int n, const float* weight, float eps, float* y) {
  const F32 d;
  auto squares = hn::Zero(d);
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto v = load_up_to(d, x + i, part);
    squares = hn::MulAdd(v, v, squares);
  });
  const float mean = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(n);
  const auto scale = hn::Set(d, 1 / std::sqrt(mean + eps));
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto v = hn::Mul(load_up_to(d, x + i, part), scale);
    store_part(d, hn::Mul(v, load_up_to(d, weight + i, part)), part, y + i);
  });
}

void add_to_simd(float* y, const float* x, std::int64_t n) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    store_part(d, hn::Add(load_up_to(d, y + i, part), load_up_to(d, x + i, part)), part, y + i);
  });
}

void silu_mul_to_simd(float* gate, const float* up, std::int64_t n) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto x = load_up_to(d, gate + i, part);
    store_part(d, hn::Mul(hn::Mul(x, sigmoid(d, x)), load_up_to(d, up + i, part)), part, gate + i);
  });
}

void sigmoid_mul_to_simd(float* x, const float* gate, std::int64_t n) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    store_part(d, hn::Mul(load_up_to(d, x + i, part), sigmoid(d, load_up_to(d, gate + i, part))), part, x + i);
  });
}

// (1 + tanh(u)) / 2 is the sigmoid of 2 u, here with u's factors of x and x^3 doubled. Beyond 100 it is 0 or 1.
void gelu_mul_to_simd(float* gate, const float* up, std::int64_t n) {
  const F32 d;
  const auto linear = hn::Set(d, gelu_linear);
  const auto cubic = hn::Set(d, gelu_cubic);
  const auto most = hn::Set(d, 100.0f);
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto x = load_up_to(d, gate + i, part);
    const auto z = hn::Mul(x, hn::MulAdd(cubic, hn::Mul(x, x), linear));
    const auto share = sigmoid(d, hn::Max(hn::Min(z, most), hn::Neg(most)));
    store_part(d, hn::Mul(hn::Mul(x, share), load_up_to(d, up + i, part)), part, gate + i);
  });
}

void clamped_mul_to_simd(float* gate, const float* up, float limit, std::int64_t n) {
  const F32 d;
  const auto most = hn::Set(d, limit), least = hn::Set(d, -limit), one = hn::Set(d, 1.0f);
  const auto slope = hn::Set(d, clamped_slope);
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto x = load_up_to(d, gate + i, part);
    const auto y = load_up_to(d, up + i, part);
    const auto g = hn::IfThenElse(hn::Gt(x, most), most, x);  // a NaN stays one
    const auto u = hn::IfThenElse(hn::Gt(y, most), most, hn::IfThenElse(hn::Lt(y, least), least, y));
    store_part(d, hn::Mul(hn::Add(u, one), hn::Mul(g, sigmoid(d, hn::Mul(slope, g)))), part, gate + i);
  });
}

// tanh(|u|) is (1 - e) / (1 + e) with e = exp(-2 |u|).
void soft_cap_to_simd(float* x, float cap, std::int64_t n) {
  const F32 d;
  const auto limit = hn::Set(d, cap), per = hn::Set(d, -2 / cap), one = hn::Set(d, 1.0f);
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto v = load_up_to(d, x + i, part);
    const auto e = index::HWY_NAMESPACE::exp_accurate(d, hn::Mul(per, hn::Abs(v)));
    const auto capped = hn::Mul(limit, hn::Div(hn::Sub(one, e), hn::Add(one, e)));
    store_part(d, hn::IfThenElse(hn::IsFinite(v), hn::CopySign(capped, v), v), part, x + i);
  });
}

void scale_by_simd(float* x, float factor, std::int64_t n) {
  const F32 d;
  const auto by = hn::Set(d, factor);
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    store_part(d, hn::Mul(load_up_to(d, x + i, part), by), part, x + i);
  });
}

bool any_nonfinite_simd(const float* x, std::int64_t n) {
  const F32 d;
  // x - x is zero for finite x and NaN otherwise, and a NaN survives every addition.
  auto sum = hn::Zero(d);
  for_each_vector(d, n, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto v = load_up_to(d, x + i, part);
    sum = hn::Add(sum, hn::Sub(v, v));
  });
  return hn::GetLane(hn::SumOfLanes(d, sum)) != 0;
}

void rotate_head_simd(float* x, int half, const float* cosine, const float* sine) {
  const F32 d;
  for_each_vector(d, half, [&](std::int64_t i, std::size_t part) HWY_ATTR {
    const auto c = load_up_to(d, cosine + i, part);
    const auto s = load_up_to(d, sine + i, part);
    const auto a = load_up_to(d, x + i, part);
    const auto b = load_up_to(d, x + half + i, part);
    store_part(d, hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), part, x + i);
    store_part(d, hn::Add(hn::Mul(b, c), hn::Mul(a, s)), part, x + half + i);
  });
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(widen_simd);
HWY_EXPORT(narrow_simd);
HWY_EXPORT(rms_norm_row_simd);
HWY_EXPORT(add_to_simd);
HWY_EXPORT(silu_mul_to_simd);
HWY_EXPORT(sigmoid_mul_to_simd);
HWY_EXPORT(gelu_mul_to_simd);
HWY_EXPORT(clamped_mul_to_simd);
HWY_EXPORT(soft_cap_to_simd);
HWY_EXPORT(scale_by_simd);
HWY_EXPORT(any_nonfinite_simd);
HWY_EXPORT(rotate_head_simd);

void widen(const void* from, DType type, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_simd)(from, type, n, to);
}
void narrow(const float* from, std::int64_t n, f16* to) {
  HWY_DYNAMIC_DISPATCH(narrow_simd)(from, n, to);
}
void rms_norm_row(const float* x, int n, const float* weight, float eps, float* y) {
  HWY_DYNAMIC_DISPATCH(rms_norm_row_simd)(x, n, weight, eps, y);
}
void add_to(float* y, const float* x, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(add_to_simd)(y, x, n);
}
void silu_mul_to(float* gate, const float* up, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(silu_mul_to_simd)(gate, up, n);
}
void sigmoid_mul_to(float* x, const float* gate, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(sigmoid_mul_to_simd)(x, gate, n);
}
void gelu_mul_to(float* gate, const float* up, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(gelu_mul_to_simd)(gate, up, n);
}
void soft_cap_to(float* x, float cap, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(soft_cap_to_simd)(x, cap, n);
}
void clamped_mul_to(float* gate, const float* up, float limit, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(clamped_mul_to_simd)(gate, up, limit, n);
}
void scale_by(float* x, float factor, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(scale_by_simd)(x, factor, n);
}
bool any_nonfinite(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(any_nonfinite_simd)(x, n);
}
void rotate_head(float* x, int half, const float* cosine, const float* sine) {
  HWY_DYNAMIC_DISPATCH(rotate_head_simd)(x, half, cosine, sine);
}

}  // namespace hayloft::gpu
#endif
