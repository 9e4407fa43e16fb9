// Vectors of unknown length cannot be kept in arrays.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/scan/score_planes.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/columns/plane_weights.h"
#include "index/scan/columns/tile_notes-inl.h"
#include "index/scan/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index {
namespace HWY_NAMESPACE {

constexpr int most_components = offload::most_head_dim;
constexpr int most_planes = most_components * offload::plane_count;
constexpr int heads_together = 4;  // whose sums stay in registers
constexpr int range_tokens = offload::tokens_per_scale(offload::ColumnFormat::planes, 1 << 20);

// The sums of a quantisation group: 16-bit lanes, which wrap, as plane_weights.h allows.
using D16 = hn::CappedTag<std::int16_t, 32>;
using Sum = hn::Vec<D16>;
constexpr int sum_lanes = static_cast<int>(HWY_LANES(std::int16_t) < 32 ? HWY_LANES(std::int16_t) : 32);
constexpr int unit_tokens = quant_group_tokens;  // a sum is for so many tokens at a time, or twice as many
constexpr int unit_sums = unit_tokens / sum_lanes;

// The summands of a quantisation group's planes for the sums of some heads.
struct GroupWeights {
  // [planes][heads_together] twice the same 16 bits, which a load then spreads
  HWY_ALIGN std::uint32_t weights[most_planes * heads_together];
  std::int16_t start[heads_together];  // of a sum
  PlaneScale scales[heads_together];
};

// Twice the same 16 bits.
template <class DI, class VI = hn::Vec<DI>>
HWY_INLINE VI twice(DI d, VI weight) {
  return hn::Or(hn::And(weight, hn::Set(d, 0xffff)), hn::ShiftLeft<16>(weight));
}

// Holds the weights of a head block in every quantisation group: [rank][heads_together], zero for heads that are not
// there.
struct HeadWeights {
  HWY_ALIGN float w[most_components * heads_together];
};

inline void gather_weights(const HeadQuery& query, const float* weights, int heads, HeadWeights& out) {
  for (int j = 0; j < query.rank; ++j) {
    for (int h = 0; h < heads_together; ++h) {
      out.w[j * heads_together + h] = h < heads ? weights[h * query.weight_stride + j] : 0.0f;
    }
  }
}

#if HWY_TARGET == HWY_SCALAR || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2) || HWY_ARCH_WASM
// The sums of a group are fused multiply-adds, which the processor has not.
inline void weigh_terms(const HeadQuery& query, const HeadWeights& heads, const std::byte* ranges, float* terms,
                        GroupWeights& out) {
  float bound[heads_together] = {}, base[heads_together] = {};
  for (int j = 0; j < query.rank; ++j) {
    offload::PlaneRange range;
    std::memcpy(&range, ranges + query.scale_offsets[j], sizeof range);
    for (int h = 0; h < heads_together; ++h) {
      const int at = j * heads_together + h;
      terms[at] = plane_term(heads.w[at], range, query.planes[j], bound[h], base[h]);
    }
  }
  for (int h = 0; h < heads_together; ++h) out.scales[h] = plane_scale(bound[h], base[h], query.rank);
}
#else
HWY_INLINE float f16_at(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  const std::uint32_t magnitude = (bits & 0x7fffu) << 13 | (bits & 0x8000u) << 16;
  return std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, subnormals too
}

inline void weigh_terms(const HeadQuery& query, const HeadWeights& heads, const std::byte* ranges, float* terms,
                        GroupWeights& out) {
  const hn::FixedTag<float, heads_together> d;
  auto bound = hn::Zero(d), base = hn::Zero(d);
  for (int j = 0; j < query.rank; ++j) {
    const std::byte* const range = ranges + query.scale_offsets[j];
    const int planes = query.planes[j];
    const auto w = hn::Load(d, heads.w + j * heads_together);
    const float half = f16_at(range + sizeof(f16)) * offload::plane_step(planes);
    const auto a = hn::Mul(w, hn::Set(d, half));
    hn::Store(a, d, terms + j * heads_together);
    bound = hn::MulAdd(hn::Abs(a), hn::Set(d, static_cast<float>((1 << planes) - 1)), bound);
    base = hn::MulAdd(w, hn::Set(d, f16_at(range)), base);
  }
  HWY_ALIGN float bounds[heads_together], bases[heads_together];
  hn::Store(bound, d, bounds);
  hn::Store(base, d, bases);
  for (int h = 0; h < heads_together; ++h) out.scales[h] = plane_scale(bounds[h], bases[h], query.rank);
}
#endif

void weigh_planes(const HeadQuery& query, const HeadWeights& heads, const std::byte* ranges, GroupWeights& out) {
  HWY_ALIGN float terms[most_components * heads_together];
  weigh_terms(query, heads, ranges, terms, out);
  // Four lanes, or one at a time.
  const hn::CappedTag<float, heads_together> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int lanes = HWY_TARGET == HWY_SCALAR ? 1 : heads_together;
  for (int h = 0; h < heads_together; h += lanes) {
    HWY_ALIGN float inverses[lanes];
    for (int i = 0; i < lanes; ++i) inverses[i] = out.scales[h + i].inverse;
    const auto inverse = hn::Load(d, inverses);
    const auto none = hn::RebindMask(di, hn::Eq(inverse, hn::Zero(d)));
    auto start = hn::Zero(di);
    auto* to = reinterpret_cast<std::int32_t*>(out.weights) + h;
    for (int j = 0; j < query.rank; ++j) {
      const int planes = query.planes[j];
      const auto weight = hn::NearestInt(hn::Mul(hn::Load(d, terms + j * heads_together + h), inverse));
      auto twofold = twice(di, hn::IfThenZeroElse(none, weight));
      start = hn::Add(start, hn::And(twofold, hn::Set(di, 0xffff)));
      // From the last plane, of twice the weight, to the first; 16 bits wrap where they carry into the upper half.
      for (int plane = planes - 1; plane >= 0; --plane) {
        twofold = hn::And(hn::Add(twofold, twofold), hn::Set(di, static_cast<std::int32_t>(0xfffeffffu)));
        hn::Store(twofold, di, to + plane * heads_together);
      }
      start = hn::Sub(start, hn::And(twofold, hn::Set(di, 0xffff)));
      to += planes * heads_together;
    }
    HWY_ALIGN std::int32_t starts[lanes];
    hn::Store(start, di, starts);
    for (int i = 0; i < lanes; ++i) out.start[h + i] = static_cast<std::int16_t>(starts[i]);
  }
}

// Which of the sum_lanes tokens from `lane` on have their bit set.
HWY_INLINE hn::Mask<D16> bits_at(const std::byte* bits, int lane) {
  const auto* const at = reinterpret_cast<const std::uint8_t*>(bits) + lane / 8;
#if HWY_TARGET == HWY_SCALAR
  return hn::MaskFromVec(hn::Set(D16(), static_cast<std::int16_t>((*at >> (lane % 8) & 1) != 0 ? -1 : 0)));
#else
  return hn::LoadMaskBits(D16(), at);
#endif
}

HWY_INLINE Sum add_where(hn::Mask<D16> mask, Sum sum, Sum weight) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return Sum{_mm512_mask_add_epi16(sum.raw, mask.raw, sum.raw, weight.raw)};
#else
  return hn::Add(sum, hn::IfThenElseZero(mask, weight));
#endif
}

// scores[h][0 .. units * 64) of the tokens whose bits begin at planes[.] + offset.
template <int heads, int units>
HWY_INLINE void add_planes(const std::byte* const* planes, int count, std::ptrdiff_t offset, const GroupWeights& group,
                           float* scores, std::ptrdiff_t stride) {
  constexpr int together = HWY_TARGET > HWY_AVX3 && heads > 2 ? 2 : 4;  // vectors that the registers hold
  constexpr int vectors = units * unit_sums < together ? units * unit_sums : together;
  const D16 d;
  const D df;
  const hn::Rebind<std::int16_t, D> halves;
  const hn::Rebind<std::int32_t, D> integers;
  for (int first = 0; first < units * unit_tokens; first += vectors * sum_lanes) {
    Sum sums[heads][vectors];
    for (int h = 0; h < heads; ++h) {
      for (int v = 0; v < vectors; ++v) sums[h][v] = hn::Set(d, group.start[h]);
    }
    const std::uint32_t* weights = group.weights;
    for (int i = 0; i < count; ++i, weights += heads_together) {
      const std::byte* const bits = planes[i] + offset;
      Sum weight[heads];
      for (int h = 0; h < heads; ++h) {
#if HWY_TARGET == HWY_SCALAR
        weight[h] = hn::Set(d, static_cast<std::int16_t>(weights[h]));
#else
        weight[h] = hn::BitCast(d, hn::Set(hn::Repartition<std::uint32_t, D16>(), weights[h]));
#endif
      }
      for (int v = 0; v < vectors; ++v) {
        const auto mask = bits_at(bits, first + v * sum_lanes);
        for (int h = 0; h < heads; ++h) sums[h][v] = add_where(mask, sums[h][v], weight[h]);
      }
    }
    for (int h = 0; h < heads; ++h) {
      HWY_ALIGN std::int16_t lanes[vectors * sum_lanes];
      for (int v = 0; v < vectors; ++v) hn::Store(sums[h][v], d, lanes + v * sum_lanes);
      const Vec unit = hn::Set(df, group.scales[h].unit), base = hn::Set(df, group.scales[h].base);
      float* const out = scores + h * stride + first;
      for (int t = 0; t < vectors * sum_lanes; t += lane_count) {
        const auto whole = hn::ConvertTo(df, hn::PromoteTo(integers, hn::LoadU(halves, lanes + t)));
        hn::StoreU(hn::MulAdd(whole, unit, base), df, out + t);
      }
    }
  }
}

template <int heads>
void score_heads(const HeadQuery& query, const float* weights, const TokenRun& run, const TokenRun& next, int tokens,
                 float* scores, std::ptrdiff_t stride) {
  const std::byte* planes[most_planes];
  int count = 0;
  for (int j = 0; j < query.rank; ++j) {
    for (int plane = 0; plane < query.planes[j]; ++plane) {
      planes[count++] = run.columns + query.offsets[j] + plane * query.plane_bytes;
    }
  }
  HeadWeights own;
  gather_weights(query, weights, heads, own);
  GroupWeights group;
  for (int t = 0; t < tokens;) {
    const int place = run.scale_start + t;
    const int end = std::min(tokens, t + range_tokens - place % range_tokens);
    weigh_planes(query, own, run.scales + place / range_tokens * static_cast<int>(sizeof(offload::PlaneRange)), group);
    if (next.columns != nullptr && tokens > 2 * unit_tokens) {
      const std::ptrdiff_t ahead = next.columns - run.columns;
      for (int i = count * t / tokens; i < count * end / tokens; ++i) {
        for (int at = 0; at < tokens / 8; at += 64) __builtin_prefetch(planes[i] + ahead + at, 0, 2);
      }
    }
    for (; end - t > unit_tokens; t += 2 * unit_tokens) {
      add_planes<heads, 2>(planes, count, t / 8, group, scores + t, stride);
    }
    if (t < end) add_planes<heads, 1>(planes, count, t / 8, group, scores + t, stride);
    t = end;
  }
}

void score_planes(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores,
                  int stride, const TileNotes* notes) {
  for (int first = 0; first < query.heads; first += heads_together) {
    const float* const weights = query.weights + static_cast<std::ptrdiff_t>(first) * query.weight_stride;
    float* const of_heads = scores + static_cast<std::ptrdiff_t>(first) * stride;
    switch (query.heads - first) {
      case 1:
        score_heads<1>(query, weights, run, first == 0 ? next : TokenRun(), tokens, of_heads, stride);
        break;
      case 2:
        score_heads<2>(query, weights, run, first == 0 ? next : TokenRun(), tokens, of_heads, stride);
        break;
      case 3:
        score_heads<3>(query, weights, run, first == 0 ? next : TokenRun(), tokens, of_heads, stride);
        break;
      default:
        score_heads<4>(query, weights, run, first == 0 ? next : TokenRun(), tokens, of_heads, stride);
    }
  }
  if (notes == nullptr) return;
  const int end = (tokens + quant_group_tokens - 1) / quant_group_tokens * quant_group_tokens;
  for (int h = 0; h < query.heads; ++h) {
    float* const row = scores + static_cast<std::ptrdiff_t>(h) * stride;
    std::fill(row + tokens, row + end, -infinity);
  }
  for (int t = 0; t < end; t += quant_group_tokens) {
    note_quant_group(scores + t, stride, query.heads, t / quant_group_tokens, *notes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::index
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(score_planes);

void score_planes(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores,
                  int stride, const TileNotes* notes) {
  HWY_DYNAMIC_DISPATCH(score_planes)(query, run, next, tokens, scores, stride, notes);
}

}  // namespace hayloft::index
#endif
