// Vectors of unknown length cannot be kept in arrays.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/scan/rest_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>

#include "index/scan/exp-inl.h"
#include "index/scan/rest_kernels.h"
#include "index/scan/vectors-inl.h"
#include "offload/half-inl.h"
#include "offload/store/planes.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index {
namespace HWY_NAMESPACE {

void scores_to_masses(float* x, int n, float slope, float shift) {
  const D d;
  const Vec by = hn::Set(d, slope);
  const Vec plus = hn::Set(d, shift);
  const Vec most = hn::Set(d, 60.0f);
  for (int t = 0; t < n; t += lane_count) {
    const Vec logit = hn::MulAdd(hn::Load(d, x + t), by, plus);
    hn::Store(exp(d, hn::IfThenElse(hn::Lt(most, logit), most, logit)), d, x + t);  // NaN stays
  }
}

// u of the positions from `first` on: a whole number of 2^-23 and a half. drawn_number() has the same for one.
HWY_INLINE Vec unit_numbers(std::uint64_t key, std::uint32_t first) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto low = hn::Set(du, static_cast<std::uint32_t>(key));
  const auto high = hn::Set(du, static_cast<std::uint32_t>(key >> 32));
  auto x = hn::Add(hn::Mul(hn::Iota(du, first), hn::Set(du, 0x9e3779b1u)), low);
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x85ebca6bu));
  x = hn::Mul(hn::Xor(hn::Xor(x, hn::ShiftRight<13>(x)), high), hn::Set(du, 0xc2b2ae35u));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  const Vec whole = hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<9>(x)));
  return hn::Mul(hn::Add(whole, hn::Set(d, 0.5f)), hn::Set(d, 0x1p-23f));
}

HWY_INLINE Vec added(const MassTile& tile, int t) {
  const D d;
  Vec p = hn::Load(d, tile.masses + t);
  for (int h = 1; h < tile.heads; ++h) {
    p = hn::Add(p, hn::Load(d, tile.masses + static_cast<std::ptrdiff_t>(h) * tile.stride + t));
  }
  return p;
}

HWY_INLINE Vec priority_of(const DrawNumbers& numbers, int t, Vec p) {
  const D d;
  const std::uint32_t first = numbers.starts[t / 16] + static_cast<std::uint32_t>(t % 16);
  const Vec priority = hn::Div(p, unit_numbers(numbers.key, first));
  return hn::IfThenElseZero(hn::Gt(priority, hn::Zero(d)), priority);
}

void note_masses(const MassTile& tile, const DrawNumbers& numbers, float* sums, float* squares, float* maxima) {
  const D d;
  for (int h = 0; h < tile.heads; ++h) {
    const float* const x = tile.masses + static_cast<std::ptrdiff_t>(h) * tile.stride;
    for (int lane = 0; lane < 16; lane += lane_count) {
      Vec sum = hn::Load(d, sums + h * 16 + lane);
      Vec square = hn::Load(d, squares + h * 16 + lane);
      for (int t = lane; t < tile.n; t += 16) {
        const Vec mass = hn::Load(d, x + t);
        sum = hn::Add(sum, mass);
        square = hn::MulAdd(mass, mass, square);
      }
      hn::Store(sum, d, sums + h * 16 + lane);
      hn::Store(square, d, squares + h * 16 + lane);
    }
  }
  if (maxima == nullptr) return;
  for (int t = 0; t < tile.n; t += draw_span_tokens, maxima += draw_span_maxima) {
    const int end = std::min(t + draw_span_tokens, tile.n);
    for (int lane = 0; lane < draw_span_maxima; lane += lane_count) {
      Vec most = hn::Zero(d);
      for (int i = t + lane; i < end; i += draw_span_maxima) {
        most = hn::Max(most, priority_of(numbers, i, added(tile, i)));
      }
      hn::StoreU(most, d, maxima + lane);
    }
  }
}

int draw_candidates(const MassTile& tile, const DrawNumbers& numbers, float least, float* p, float* priorities,
                    std::int32_t* at) {
  const D d;
  const hn::RebindToSigned<D> di;
  const Vec from = hn::Set(d, least);
  std::size_t count = 0;
  for (int t = 0; t < tile.n; t += lane_count) {
    const Vec all = added(tile, t);
    const Vec priority = priority_of(numbers, t, all);
    hn::Store(all, d, p + t);
    hn::Store(priority, d, priorities + t);
    const auto high = hn::And(hn::Ge(priority, from), hn::Gt(priority, hn::Zero(d)));
    if (hn::AllFalse(d, high)) continue;
    count += hn::CompressBlendedStore(hn::Iota(di, t), hn::RebindMask(di, high), di, at + count);
  }
  return static_cast<int>(count);
}

HWY_INLINE Vec key_at(const f16* from) {
  const D d;
  return offload::HWY_NAMESPACE::widen_half(
      d, hn::LoadU(hn::Rebind<std::uint16_t, D>(), reinterpret_cast<const std::uint16_t*>(from)));
}

// A component's keys as its first planes have them: offload::plane_key().
struct ReadPlanes {
  int shift, cells;
  float step;
};

HWY_INLINE Vec plane_keys_at(const LineKeys& keys, const ReadPlanes& read, std::ptrdiff_t at) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto code =
      hn::ShiftRightSame(hn::PromoteTo(di, hn::LoadU(hn::Rebind<std::uint8_t, D>(), keys.codes + at)), read.shift);
  const Vec level = hn::ConvertTo(d, hn::Sub(hn::Add(code, code), hn::Set(di, read.cells - 1)));
  return hn::MulAdd(hn::Mul(key_at(keys.halves + at), hn::Set(d, read.step)), level, key_at(keys.centres + at));
}

void line_logits(const LineKeys& keys, const float* weights, const float* query, int heads, const std::uint8_t* planes,
                 float* approximate, float* exact) {
  const D d;
  const int padded = (keys.n + 15) / 16 * 16;
  for (int h = 0; h < heads; ++h) {
    std::fill_n(approximate + std::ptrdiff_t{h} * line_row, padded, 0.0f);
    std::fill_n(exact + std::ptrdiff_t{h} * line_row, padded, 0.0f);
  }
  for (int c = 0; c < keys.d; ++c) {
    const int read_planes = planes == nullptr ? 0 : planes[c];
    const bool looked_at = planes == nullptr || read_planes > 0;
    const ReadPlanes read{offload::plane_count - read_planes, 1 << read_planes, offload::plane_step(read_planes)};
    for (int t = 0; t < padded; t += lane_count) {
      const std::ptrdiff_t at = std::ptrdiff_t{c} * line_row + t;
      const Vec key = key_at(keys.keys + at);
      const Vec seen = read_planes > 0 ? plane_keys_at(keys, read, at) : key;
      for (int h = 0; h < heads; ++h) {
        const std::ptrdiff_t of_head = std::ptrdiff_t{h} * keys.d + c;
        float* const e = exact + std::ptrdiff_t{h} * line_row + t;
        hn::StoreU(hn::MulAdd(key, hn::Set(d, query[of_head]), hn::LoadU(d, e)), d, e);
        if (!looked_at) continue;
        float* const a = approximate + std::ptrdiff_t{h} * line_row + t;
        hn::StoreU(hn::MulAdd(seen, hn::Set(d, weights[of_head]), hn::LoadU(d, a)), d, a);
      }
    }
  }
}

void widen_values(const f16* const* rows, int n, int d, int stride, float* out) {
  const D df;
  for (int i = 0; i < n; ++i, out += stride) {
    if (i + 8 < n) {
      for (int c = 0; c < d; c += 32) __builtin_prefetch(rows[i + 8] + c);
    }
    int c = 0;
    for (; c + lane_count <= d; c += lane_count) hn::Store(key_at(rows[i] + c), df, out + c);
    for (; c < stride; ++c) out[c] = c < d ? to_float(rows[i][c]) : 0;
  }
}

void sum_values(const float* values, int n, int stride, const float* weights, float* out) {
  const D d;
  for (int c = 0; c < stride; c += lane_count) {
    Vec sum = hn::Zero(d);
    for (int i = 0; i < n; ++i) {
      sum = hn::MulAdd(hn::Load(d, values + static_cast<std::ptrdiff_t>(i) * stride + c), hn::Set(d, weights[i]), sum);
    }
    hn::Store(sum, d, out + c);
  }
}

void dot_values(const float* values, int n, int stride, const float* y, float* out) {
  const D d;
  for (int i = 0; i < n; ++i) {
    Vec sum = hn::Zero(d);
    for (int c = 0; c < stride; c += lane_count) {
      sum = hn::MulAdd(hn::Load(d, values + static_cast<std::ptrdiff_t>(i) * stride + c), hn::Load(d, y + c), sum);
    }
    out[i] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::index
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(scores_to_masses);
HWY_EXPORT(note_masses);
HWY_EXPORT(draw_candidates);
HWY_EXPORT(line_logits);
HWY_EXPORT(widen_values);
HWY_EXPORT(sum_values);
HWY_EXPORT(dot_values);

void scores_to_masses(float* x, int n, float slope, float shift) {
  HWY_DYNAMIC_DISPATCH(scores_to_masses)(x, n, slope, shift);
}

void note_masses(const MassTile& tile, const DrawNumbers& numbers, float* sums, float* squares, float* maxima) {
  HWY_DYNAMIC_DISPATCH(note_masses)(tile, numbers, sums, squares, maxima);
}

int draw_candidates(const MassTile& tile, const DrawNumbers& numbers, float least, float* p, float* priorities,
                    std::int32_t* at) {
  return HWY_DYNAMIC_DISPATCH(draw_candidates)(tile, numbers, least, p, priorities, at);
}

void line_logits(const LineKeys& keys, const float* weights, const float* query, int heads, const std::uint8_t* planes,
                 float* approximate, float* exact) {
  HWY_DYNAMIC_DISPATCH(line_logits)(keys, weights, query, heads, planes, approximate, exact);
}

void widen_values(const f16* const* rows, int n, int d, int stride, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_values)(rows, n, d, stride, out);
}

void sum_values(const float* values, int n, int stride, const float* weights, float* out) {
  HWY_DYNAMIC_DISPATCH(sum_values)(values, n, stride, weights, out);
}

void dot_values(const float* values, int n, int stride, const float* y, float* out) {
  HWY_DYNAMIC_DISPATCH(dot_values)(values, n, stride, y, out);
}

}  // namespace hayloft::index
#endif
