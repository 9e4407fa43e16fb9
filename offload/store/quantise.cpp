#include "offload/store/quantise.h"

#include <algorithm>
#include <cstring>

#include "offload/store/columns.h"
#include "offload/store/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/store/quantise.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include "offload/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Magnitudes as finite() leaves them. As integers they are in the order of their values.
template <class D16, class V = hn::Vec<D16>>
HWY_INLINE V finite_magnitude(D16 d, V bits) {
  const V magnitude = hn::And(bits, hn::Set(d, 0x7fff));
  const V number = hn::IfThenZeroElse(hn::Gt(magnitude, hn::Set(d, 0x7c00)), magnitude);
  return hn::Min(number, hn::Set(d, 0x7bff));
}

HWY_INLINE f16 largest_magnitude(const std::int16_t* x, int tokens) {
  const hn::CappedTag<std::int16_t, 16> d;
  auto most = hn::Zero(d);
  for (int t = 0; t < tokens; t += static_cast<int>(hn::Lanes(d))) {
    most = hn::Max(most, finite_magnitude(d, hn::LoadU(d, x + t)));
  }
  HWY_ALIGN std::int16_t lanes[16] = {};
  hn::Store(most, d, lanes);
  return {static_cast<std::uint16_t>(*std::max_element(lanes, lanes + 16))};
}

HWY_INLINE void quantise_column(const std::int16_t* x, f16 scale, int tokens, std::int8_t* levels) {
  const hn::CappedTag<float, 16> df;
  const hn::Rebind<std::int16_t, decltype(df)> d16;
  const hn::Rebind<std::uint16_t, decltype(df)> du16;
  const hn::Rebind<std::int8_t, decltype(df)> d8;
  // A scale of zero means nothing but zeros, and anything may divide those.
  const auto divisor = hn::Set(df, scale.bits == 0 ? 1.0f : to_float(scale));
  for (int t = 0; t < tokens; t += static_cast<int>(hn::Lanes(df))) {
    const auto bits = hn::LoadU(d16, x + t);
    const auto sign = hn::AndNot(hn::Set(d16, 0x7fff), bits);
    const auto number = hn::BitCast(du16, hn::Or(finite_magnitude(d16, bits), sign));
    const auto value = widen_half(df, number);
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(hn::Div(value, divisor))), d8, levels + t);
  }
}

// Two levels a byte, the earlier token in the low nibble. A pair has the earlier one in its low byte.
HWY_INLINE void pack_nibbles(const std::int16_t* pairs, int tokens, std::byte* out) {
  const hn::CappedTag<std::int16_t, 8> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  for (int i = 0; i < tokens / 2; i += static_cast<int>(hn::Lanes(d16))) {
    const auto pair = hn::LoadU(d16, pairs + i);
    const auto low = hn::And(pair, hn::Set(d16, 0x0f));
    const auto high = hn::And(hn::ShiftRight<4>(pair), hn::Set(d16, 0xf0));
    hn::StoreU(hn::DemoteTo(d8, hn::Or(low, high)), d8, reinterpret_cast<std::uint8_t*>(out) + i);
  }
}

void quantise_group(const BlockLayout& layout, const f16* tile, int components, std::byte* columns, std::byte* scales) {
  const int tokens = tokens_per_scale(layout.columns, layout.block_tokens);
  for (int c = 0; c < components; ++c) {
    const auto* const x = reinterpret_cast<const std::int16_t*>(tile + c * BlockLayout::scale_tokens);
    const f16 scale = scale_for(layout.columns, largest_magnitude(x, tokens));
    std::memcpy(scales + static_cast<std::uint64_t>(c) * layout.scale_bytes, &scale, sizeof scale);
    std::byte* const to = columns + static_cast<std::uint64_t>(c) * layout.column_bytes;
    if (bits_of(layout.columns) == 8) {
      quantise_column(x, scale, tokens, reinterpret_cast<std::int8_t*>(to));
    } else {
      std::int16_t pairs[BlockLayout::scale_tokens / 2];
      quantise_column(x, scale, tokens, reinterpret_cast<std::int8_t*>(pairs));
      pack_nibbles(pairs, tokens, to);
    }
  }
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {
HWY_EXPORT(quantise_group);

void quantise_group(const BlockLayout& layout, const f16* tile, int components, std::byte* columns, std::byte* scales) {
  HWY_DYNAMIC_DISPATCH(quantise_group)(layout, tile, components, columns, scales);
}

namespace {

void fill_integer_columns(const BlockLayout& layout, std::byte* head, const f16* rows, std::int64_t stride, int first,
                          int tokens) {
  constexpr int tile = BlockLayout::scale_tokens;
  const int d = layout.head_dim;
  alignas(64) f16 keys[most_head_dim * tile];  // [d][tile], transposed
  if (tokens < tile) std::memset(keys, 0, static_cast<std::size_t>(d) * tile * sizeof(f16));
  transpose(rows, stride, tokens, d, keys, tile);
  quantise_group(
      layout, keys, d,
      head + layout.columns_offset + static_cast<std::uint64_t>(first) * layout.column_bytes / layout.block_tokens,
      head + layout.scales_offset + static_cast<std::uint64_t>(first / tile) * sizeof(f16));
}

float integer_column_key(const BlockLayout& layout, const std::byte* block, int head, int component, int t) {
  const f16 scale = layout.scales(block, head, component)[t / BlockLayout::scale_tokens];
  return to_float(scale) * static_cast<float>(level_at(layout.columns, layout.column(block, head, component), t));
}

}  // namespace

const ColumnCode integer_columns{fill_integer_columns, integer_column_key};

}  // namespace hayloft::offload
#endif
