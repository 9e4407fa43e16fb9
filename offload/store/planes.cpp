#include "offload/store/planes.h"

#include <cstring>

#include "offload/store/columns.h"
#include "offload/store/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/store/planes.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include "offload/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int group_tokens = 256;

// Keys as f32, infinity as the largest finite value and NaN as 0.
HWY_INLINE void finite_keys(const f16* x, float* keys) {
  const hn::CappedTag<float, 16> df;
  const hn::Rebind<std::uint16_t, decltype(df)> d16;
  for (int t = 0; t < group_tokens; t += static_cast<int>(hn::Lanes(df))) {
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(x) + t);
    hn::Store(held_finite(df, widen_half(df, bits)), df, keys + t);
  }
}

HWY_INLINE PlaneRange range_of(const float* keys, int tokens) {
  const hn::CappedTag<float, 16> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float lo = keys[0], hi = keys[0];
  int t = 0;
  if (tokens >= lanes) {
    auto least = hn::Load(d, keys), most = least;
    for (t = lanes; t + lanes <= tokens; t += lanes) {
      const auto x = hn::Load(d, keys + t);
      least = hn::Min(least, x);
      most = hn::Max(most, x);
    }
    lo = hn::GetLane(hn::MinOfLanes(d, least));
    hi = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (; t < tokens; ++t) {
    lo = std::min(lo, keys[t]);
    hi = std::max(hi, keys[t]);
  }
  return plane_range(lo, hi);
}

HWY_INLINE void codes_of(const float* keys, const PlaneRange& range, std::uint8_t* codes) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const auto centre = hn::Set(d, to_float(range.centre));
  const auto half = hn::Set(d, to_float(range.half));
  for (int t = 0; t < group_tokens; t += static_cast<int>(hn::Lanes(d))) {
    const auto cell = hn::Floor(hn::Mul(hn::Set(d, 8.0f), hn::Div(hn::Sub(hn::Load(d, keys + t), centre), half)));
    const auto held = hn::Min(hn::Max(cell, hn::Set(d, -8.0f)), hn::Set(d, 7.0f));
    const auto code = hn::Add(hn::ConvertTo(di, held), hn::Set(di, 8));
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + t);
  }
}

// Eight codes, a byte each, as a byte of each plane.
HWY_INLINE std::uint8_t plane_byte(std::uint64_t codes, int plane) {
  const std::uint64_t bits = codes >> (plane_count - 1 - plane) & 0x0101010101010101u;
  return static_cast<std::uint8_t>(bits * 0x0102040810204080u >> 56);
}

void fill_planes(const BlockLayout& layout, const f16* keys, int tokens, int components, std::byte* columns,
                 std::byte* scales) {
  HWY_ALIGN float group[group_tokens];
  std::uint8_t codes[group_tokens];
  const int written = tokens_per_scale(layout.columns, layout.block_tokens);
  for (int c = 0; c < components; ++c) {
    finite_keys(keys + c * group_tokens, group);
    const PlaneRange range = range_of(group, tokens);
    std::memcpy(scales + static_cast<std::uint64_t>(c) * layout.scale_bytes, &range, sizeof range);
    if (range.half.bits == 0) {
      std::memset(codes, 8, sizeof codes);
    } else {
      codes_of(group, range, codes);
    }
    std::memset(codes + tokens, 0, static_cast<std::size_t>(group_tokens - tokens));
    std::byte* const column = columns + static_cast<std::uint64_t>(c) * layout.column_bytes;
    for (int i = 0; i < written / 8; ++i) {
      std::uint64_t eight;
      std::memcpy(&eight, codes + 8 * i, sizeof eight);
      for (int plane = 0; plane < plane_count; ++plane) {
        column[static_cast<std::uint64_t>(plane) * layout.plane_bytes + static_cast<unsigned>(i)] =
            static_cast<std::byte>(plane_byte(eight, plane));
      }
    }
  }
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {
HWY_EXPORT(fill_planes);

void add_spread(const BlockLayout& layout, const std::byte* block, double* spread) {
  const int ranges = layout.block_tokens / tokens_per_scale(layout.columns, layout.block_tokens);
  for (int i = 0; i < layout.kv_heads * layout.head_dim; ++i) {
    const PlaneRange* const of = plane_ranges(layout, block, i / layout.head_dim, i % layout.head_dim);
    for (int r = 0; r < ranges; ++r) spread[i] += static_cast<double>(to_float(of[r].half));
  }
}

void fill_planes(const BlockLayout& layout, const f16* keys, int tokens, int components, std::byte* columns,
                 std::byte* scales) {
  HWY_DYNAMIC_DISPATCH(fill_planes)(layout, keys, tokens, components, columns, scales);
}

namespace {

// A group's keys, of so few components at a time that they stay in the first-level cache.
void fill_plane_columns(const BlockLayout& layout, std::byte* head, const f16* rows, std::int64_t stride, int first,
                        int tokens) {
  constexpr int group = traits_of(ColumnFormat::planes).group_tokens;
  constexpr int together = 8;
  alignas(64) f16 keys[together * group] = {};
  std::byte* const columns = head + layout.columns_offset + static_cast<unsigned>(first) / 8;
  std::byte* const scales = head + layout.scales_offset + static_cast<unsigned>(first / group) * sizeof(PlaneRange);
  for (int c = 0; c < layout.head_dim; c += together) {
    const auto component = static_cast<std::uint64_t>(c);
    transpose(rows + c, stride, tokens, together, keys, group);
    fill_planes(layout, keys, tokens, together, columns + component * layout.column_bytes,
                scales + component * layout.scale_bytes);
  }
}

float plane_column_key(const BlockLayout& layout, const std::byte* block, int head, int component, int t) {
  const PlaneRange& range =
      plane_ranges(layout, block, head, component)[t / tokens_per_scale(layout.columns, layout.block_tokens)];
  return plane_key(code_at(layout, layout.column(block, head, component), t), plane_count, range);
}

}  // namespace

const ColumnCode plane_columns{fill_plane_columns, plane_column_key};

}  // namespace hayloft::offload
#endif
