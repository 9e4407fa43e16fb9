#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "offload/error.h"
#include "offload/store/columns.h"
#include "offload/store/rows.h"
#include "offload/store/store.h"

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
  const ColumnCode& code = column_code(layout.columns);
  const int group = traits_of(layout.columns).group_tokens;  // whole tiles
  double sum[most_head_dim] = {};

  // A tile of 64 tokens stays in the first-level cache from copying to summing and fills whole lines of the columns; of
  // planes four tiles are written at once.
  constexpr int tile = BlockLayout::scale_tokens;
  for (int first = 0; first < tokens; first += tile) {
    const int count = std::min(tile, tokens - first);
    const f16* const from = rows + first * stride;
    for (int t = 0; plain && t < count; ++t) {
      f16* const to = own_rows + static_cast<std::int64_t>(first + t) * 2 * d;
      if (to != from + t * stride) std::memcpy(to, from + t * stride, layout.row_bytes);
    }
    if (first % group == 0) code.fill(layout, base, from, stride, first, std::min(group, tokens - first));
    HWY_DYNAMIC_DISPATCH(add_values)(reinterpret_cast<const std::uint16_t*>(from) + d, stride, count, d, sum);
  }

  if (!plain) fill_rows(layout, block, head, rows, stride, tokens);
  auto* const value_sum = reinterpret_cast<float*>(base + layout.value_sum_offset);
  for (int c = 0; c < d; ++c) value_sum[c] = static_cast<float>(sum[c]);
}

}  // namespace hayloft::offload
#endif
