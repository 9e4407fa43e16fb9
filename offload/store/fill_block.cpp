#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "offload/error.h"
#include "offload/store/planes.h"
#include "offload/store/quantise.h"
#include "offload/store/rows.h"
#include "offload/store/store.h"
#include "offload/store/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/store/fill_block.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "offload/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// sum[c] += from[t * stride + c], token by token.
void add_values(const std::uint16_t* from, std::int64_t stride, int tokens, int components, double* sum) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const hn::Rebind<std::uint16_t, decltype(dd)> dh;
  const int lanes = static_cast<int>(hn::Lanes(dd));  // divides 8
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < components; c += lanes) {
      const auto value = widen_half(df, hn::LoadU(dh, from + t * stride + c));
      hn::StoreU(hn::Add(hn::LoadU(dd, sum + c), hn::PromoteTo(dd, value)), dd, sum + c);
    }
  }
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {
namespace {

// The planes of a head, a quantisation group at a time, of so few components that their keys stay in the first-level
// cache.
void fill_plane_columns(const BlockLayout& layout, std::byte* base, const f16* rows, std::int64_t stride, int tokens) {
  constexpr int group = tokens_per_scale(ColumnFormat::planes, 1 << 20);
  constexpr int together = 8;
  alignas(64) f16 keys[together * group] = {};
  for (int first = 0; first < tokens; first += group) {
    const int count = std::min(group, tokens - first);
    std::byte* const scales = base + layout.scales_offset + static_cast<unsigned>(first / group) * sizeof(PlaneRange);
    for (int c = 0; c < layout.head_dim; c += together) {
      const auto component = static_cast<std::uint64_t>(c);
      transpose(rows + first * stride + c, stride, count, together, keys, group);
      fill_planes(layout, keys, count, together,
                  base + layout.columns_offset + component * layout.column_bytes + static_cast<unsigned>(first) / 8,
                  scales + component * layout.scale_bytes);
    }
  }
}

}  // namespace

HWY_EXPORT(add_values);

void fill_block(const BlockLayout& layout, std::byte* block, int head, const f16* rows, std::int64_t stride,
                int tokens) {
  if (head < 0 || head >= layout.kv_heads || tokens < 0 || tokens > layout.block_tokens) {
    throw std::logic_error(fmt::format("fill_block: head {} of {}, {} tokens in a block of {}", head, layout.kv_heads,
                                       tokens, layout.block_tokens));
  }
  const int d = layout.head_dim;
  std::byte* const base = block + static_cast<std::uint64_t>(head) * layout.head_bytes;
  const bool plain = layout.row_format == RowFormat::f16;
  auto* const own_rows = reinterpret_cast<f16*>(base);
  std::byte* const columns = base + layout.columns_offset;
  double sum[256] = {};
  alignas(64) f16 keys[256 * BlockLayout::scale_tokens];  // [d][tile], transposed, where they are quantised next

  // A tile of 64 tokens stays in the first-level cache from copying to summing and fills whole lines of the columns.
  constexpr int tile = BlockLayout::scale_tokens;
  for (int first = 0; first < tokens; first += tile) {
    const int count = std::min(tile, tokens - first);
    const f16* const from = rows + first * stride;
    for (int t = 0; plain && t < count; ++t) {
      f16* const to = own_rows + static_cast<std::int64_t>(first + t) * 2 * d;
      if (to != from + t * stride) std::memcpy(to, from + t * stride, layout.row_bytes);
    }
    if (layout.columns == ColumnFormat::f16) {
      f16* const to = reinterpret_cast<f16*>(columns) + first;
      transpose(from, stride, count, d, to, layout.block_tokens);
    } else if (layout.columns != ColumnFormat::planes) {
      if (count < tile) std::memset(keys, 0, static_cast<std::size_t>(d) * tile * sizeof(f16));
      transpose(from, stride, count, d, keys, tile);
      const std::uint64_t offset = static_cast<std::uint64_t>(first) * layout.column_bytes / layout.block_tokens;
      quantise_group(layout, keys, d, columns + offset,
                     base + layout.scales_offset + static_cast<std::uint64_t>(first / tile) * sizeof(f16));
    }
    HWY_DYNAMIC_DISPATCH(add_values)(reinterpret_cast<const std::uint16_t*>(from) + d, stride, count, d, sum);
  }

  if (!plain) fill_rows(layout, block, head, rows, stride, tokens);
  if (layout.columns == ColumnFormat::planes) fill_plane_columns(layout, base, rows, stride, tokens);
  auto* const value_sum = reinterpret_cast<float*>(base + layout.value_sum_offset);
  for (int c = 0; c < d; ++c) value_sum[c] = static_cast<float>(sum[c]);
}

}  // namespace hayloft::offload
#endif
