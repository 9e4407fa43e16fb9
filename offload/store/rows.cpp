#include "offload/store/rows.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/store/rows.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include "offload/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Head dimensions and groups are multiples of 8.
using Eight = hn::CappedTag<float, 8>;

HWY_INLINE hn::Vec<Eight> finite_at(const f16* x) {
  const Eight d;
  const hn::Rebind<std::uint16_t, Eight> d16;
  return held_finite(d, widen_half(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(x))));
}

// Levels of `count` elements, x [count].
HWY_INLINE void put_levels(RowFormat format, const float* x, int count, f16 scale, std::byte* to) {
  const Eight d;
  const hn::Rebind<std::int8_t, Eight> d8;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto n = static_cast<float>(levels_below_zero(format));
  const bool zero = scale.bits == 0;
  const auto divisor = hn::Set(d, zero ? 1.0f : to_float(scale));
  HWY_ALIGN std::int8_t levels[64];
  for (int i = 0; i < count; i += lanes) {
    // Held before it is rounded: n and n - 1 are whole.
    const auto quotient = hn::Div(hn::LoadU(d, x + i), divisor);
    const auto held = hn::Min(hn::Max(quotient, hn::Set(d, -n)), hn::Set(d, n - 1));
    const auto level = zero ? hn::Zero(hn::Rebind<std::int32_t, Eight>()) : hn::NearestInt(held);
    hn::StoreU(hn::DemoteTo(d8, level), d8, levels + i);
  }
  if (format == RowFormat::int8) {
    std::memcpy(to, levels, static_cast<std::size_t>(count));
    return;
  }
  for (int i = 0; i < count / 2; ++i) {
    to[i] = static_cast<std::byte>((levels[2 * i] & 15) | (levels[2 * i + 1] & 15) << 4);
  }
}

// Levels and scales of d elements that have been brought to a common scale.
HWY_INLINE void put_elements(RowFormat format, const float* x, int d, std::byte* levels, std::byte* scales) {
  const Eight tag;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  const int group = elements_per_scale(format);
  for (int first = 0; first < d; first += group) {
    const int count = std::min(group, d - first);
    auto least = hn::LoadU(tag, x + first), most = least;
    for (int i = lanes; i < count; i += lanes) {
      const auto v = hn::LoadU(tag, x + first + i);
      least = hn::Min(least, v);
      most = hn::Max(most, v);
    }
    const f16 scale =
        row_scale(format, hn::GetLane(hn::MinOfLanes(tag, least)), hn::GetLane(hn::MaxOfLanes(tag, most)));
    std::memcpy(scales + static_cast<std::size_t>(first / group) * sizeof scale, &scale, sizeof scale);
    put_levels(format, x + first, count, scale, levels + first * bits_of(format) / 8);
  }
}

void fill_rows(const BlockLayout& layout, std::byte* block, int head, const f16* rows, std::int64_t stride,
               int tokens) {
  const Eight tag;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  const int d = layout.head_dim;
  const RowFormat format = layout.row_format;
  const int together = tokens_per_range(layout.block_tokens);
  const std::uint64_t scales = row_scales_offset(layout);
  const std::uint64_t value_scales = scales + static_cast<unsigned>(key_scales(layout)) * sizeof(f16);
  std::byte* const base = block + static_cast<std::uint64_t>(head) * layout.head_bytes;
  HWY_ALIGN float centre[most_head_dim], inverse[most_head_dim], x[most_head_dim];
  for (int first = 0; first < tokens; first += together) {
    const int count = std::min(together, tokens - first);
    const f16* const from = rows + first * stride;
    auto* const ranges = const_cast<ChannelRange*>(channel_ranges(layout, block, head, first));
    for (int c = 0; c < d; c += lanes) {
      auto least = finite_at(from + c), most = least;
      for (int t = 1; t < count; ++t) {
        const auto v = finite_at(from + t * stride + c);
        least = hn::Min(least, v);
        most = hn::Max(most, v);
      }
      HWY_ALIGN float lo[8], hi[8];
      hn::Store(least, tag, lo);
      hn::Store(most, tag, hi);
      for (int i = 0; i < lanes; ++i) {
        ranges[c + i] = channel_range(lo[i], hi[i]);
        centre[c + i] = to_float(ranges[c + i].centre);
        inverse[c + i] = 1 / to_float(ranges[c + i].width);  // both are powers of two
      }
    }
    for (int t = 0; t < count; ++t) {
      std::byte* const row = base + static_cast<std::uint64_t>(first + t) * layout.row_bytes;
      const f16* const source = from + t * stride;
      for (int c = 0; c < d; c += lanes) {
        const auto offset = hn::Sub(finite_at(source + c), hn::Load(tag, centre + c));
        hn::Store(hn::Mul(offset, hn::Load(tag, inverse + c)), tag, x + c);
      }
      put_elements(format, x, d, row, row + scales);
      for (int c = 0; c < d; c += lanes) hn::Store(finite_at(source + d + c), tag, x + c);
      put_elements(format, x, d, row + d * bits_of(format) / 8, row + value_scales);
    }
  }
}

// Levels i to i + lanes of a row, as numbers.
template <RowFormat format, class D>
HWY_INLINE hn::Vec<D> levels_at(D d, const std::byte* row, int i) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::int8_t, D> d8;
  if constexpr (format == RowFormat::int8) {
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(row) + i)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<float>(level_at(format, row, i)));
#else
    // A byte in 16 bits, its nibbles moved to a byte each.
    const hn::Half<hn::Rebind<std::uint16_t, D> > d16;
    const auto both = hn::PromoteTo(
        d16, hn::LoadU(hn::Rebind<std::uint8_t, decltype(d16)>(), reinterpret_cast<const std::uint8_t*>(row) + i / 2));
    const auto low = hn::And(both, hn::Set(d16, 0x0f));
    const auto high = hn::ShiftLeft<4>(hn::And(both, hn::Set(d16, 0xf0)));
    const auto eight = hn::Set(d8, 8);
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::Sub(hn::Xor(hn::BitCast(d8, hn::Or(low, high)), eight), eight)));
#endif
  }
}

constexpr std::uint64_t ahead = 8;  // rows: about what a memory latency takes to read

template <RowFormat format, class D>
HWY_INLINE void read(D tag, const BlockLayout& layout, const std::byte* block, int head, int slot, int n, bool values,
                     f16* out) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  const int d = layout.head_dim;
  const int group = elements_per_scale(format);
  const std::uint64_t scales_offset = row_scales_offset(layout);
  const int value_scales = key_scales(layout);
  const std::byte* row = layout.row_data(block, head) + static_cast<std::uint64_t>(slot) * layout.row_bytes;
  const std::uint64_t read_bytes = values ? layout.row_bytes : layout.row_bytes / 2;
  for (int t = slot; t < slot + n; ++t, row += layout.row_bytes, out += 2 * d) {
    if (n > 1) {  // rows that are not wholly read are not foreseen by the processor
      for (std::uint64_t at = 0; at < read_bytes; at += 64)
        __builtin_prefetch(row + ahead * layout.row_bytes + at, 0, 3);
    }
    const auto* const ranges = reinterpret_cast<const std::uint32_t*>(channel_ranges(layout, block, head, t));
    const auto* const scales = reinterpret_cast<const f16*>(row + scales_offset);
    auto* const to = reinterpret_cast<std::uint16_t*>(out);
    for (int first = 0, g = 0; first < d; first += group, ++g) {
      const auto scale = hn::Set(tag, to_float(scales[g]));
      for (int c = first; c < std::min(first + group, d); c += lanes) {
        const auto range = hn::LoadU(d32, ranges + c);  // centre in the low half
        const auto centre = widen_half(tag, hn::TruncateTo(d16, range));
        // A power of two that is a normal f16: its exponent moves to where f32 has it.
        const auto width =
            hn::BitCast(tag, hn::Add(hn::ShiftLeft<13>(hn::ShiftRight<16>(range)), hn::Set(d32, 112u << 23)));
        // Exact, as widths are powers of two: it does not matter whether the sum is fused to it.
        const auto x = hn::Mul(hn::Mul(levels_at<format>(tag, row, c), scale), width);
        hn::StoreU(narrow_half(tag, hn::Add(x, centre)), d16, to + c);
      }
    }
    if (!values) continue;
    for (int first = 0, g = value_scales; first < d; first += group, ++g) {
      const auto scale = hn::Set(tag, to_float(scales[g]));
      for (int c = first; c < std::min(first + group, d); c += lanes) {
        hn::StoreU(narrow_half(tag, hn::Mul(levels_at<format>(tag, row, d + c), scale)), d16, to + d + c);
      }
    }
  }
}

void read_elements(const BlockLayout& layout, const std::byte* block, int head, int slot, int n, bool values,
                   f16* out) {
  const auto in = [&](auto tag) HWY_ATTR {
    if (layout.row_format == RowFormat::int8) {
      read<RowFormat::int8>(tag, layout, block, head, slot, n, values, out);
    } else {
      read<RowFormat::int4>(tag, layout, block, head, slot, n, values, out);
    }
  };
  if (layout.head_dim % 16 == 0) return in(hn::CappedTag<float, 16>());
  in(Eight());
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {
HWY_EXPORT(fill_rows);
HWY_EXPORT(read_elements);

void fill_rows(const BlockLayout& layout, std::byte* block, int head, const f16* rows, std::int64_t stride,
               int tokens) {
  HWY_DYNAMIC_DISPATCH(fill_rows)(layout, block, head, rows, stride, tokens);
}

void read_rows(const BlockLayout& layout, const std::byte* block, int head, int slot, int n, f16* out) {
  HWY_DYNAMIC_DISPATCH(read_elements)(layout, block, head, slot, n, true, out);
}

void read_keys(const BlockLayout& layout, const std::byte* block, int head, int slot, int n, f16* out) {
  HWY_DYNAMIC_DISPATCH(read_elements)(layout, block, head, slot, n, false, out);
}

}  // namespace hayloft::offload
#endif
