#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "offload/error.h"
#include "offload/quantise.h"
#include "offload/store.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/fill_block.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "offload/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Eight components of eight tokens, one 16-byte vector each, turned on their side: three rounds of interleaving the
// vectors that lie half the square apart.
HWY_INLINE void transpose_square(const std::uint16_t* from, std::int64_t stride, std::uint16_t* to,
                                 std::int64_t column) {
  const hn::Full128<std::uint16_t> d;
  using V = hn::Vec<decltype(d)>;
  V a0 = hn::LoadU(d, from), a1 = hn::LoadU(d, from + stride);
  V a2 = hn::LoadU(d, from + 2 * stride), a3 = hn::LoadU(d, from + 3 * stride);
  V a4 = hn::LoadU(d, from + 4 * stride), a5 = hn::LoadU(d, from + 5 * stride);
  V a6 = hn::LoadU(d, from + 6 * stride), a7 = hn::LoadU(d, from + 7 * stride);
  for (int round = 0; round < 3; ++round) {
    const V b0 = hn::InterleaveLower(d, a0, a4), b1 = hn::InterleaveUpper(d, a0, a4);
    const V b2 = hn::InterleaveLower(d, a1, a5), b3 = hn::InterleaveUpper(d, a1, a5);
    const V b4 = hn::InterleaveLower(d, a2, a6), b5 = hn::InterleaveUpper(d, a2, a6);
    const V b6 = hn::InterleaveLower(d, a3, a7), b7 = hn::InterleaveUpper(d, a3, a7);
    a0 = b0, a1 = b1, a2 = b2, a3 = b3, a4 = b4, a5 = b5, a6 = b6, a7 = b7;
  }
  hn::StoreU(a0, d, to);
  hn::StoreU(a1, d, to + column);
  hn::StoreU(a2, d, to + 2 * column);
  hn::StoreU(a3, d, to + 3 * column);
  hn::StoreU(a4, d, to + 4 * column);
  hn::StoreU(a5, d, to + 5 * column);
  hn::StoreU(a6, d, to + 6 * column);
  hn::StoreU(a7, d, to + 7 * column);
}

#endif

// columns[c * column + t] = from[t * stride + c] for `tokens` tokens and `components` (a multiple of 8) components.
void transpose(const std::uint16_t* from, std::int64_t stride, int tokens, int components, std::uint16_t* columns,
               std::int64_t column) {
  int whole = 0;
#if HWY_TARGET != HWY_SCALAR  // which has no vectors to interleave
  whole = tokens / 8 * 8;
  for (int c = 0; c < components; c += 8) {
    for (int t = 0; t < whole; t += 8)
      transpose_square(from + t * stride + c, stride, columns + c * column + t, column);
  }
#endif
  for (int t = whole; t < tokens; ++t) {
    for (int c = 0; c < components; ++c) columns[c * column + t] = from[t * stride + c];
  }
}

// sum[c] += from[t * stride + c], token by token.
void add_values(const std::uint16_t* from, std::int64_t stride, int tokens, int components, double* sum) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<std::uint16_t, decltype(dd)> dh;
  const int lanes = static_cast<int>(hn::Lanes(dd));  // divides 8
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < components; c += lanes) {
      const auto value = widen(df, hn::PromoteTo(du, hn::LoadU(dh, from + t * stride + c)));
      hn::StoreU(hn::Add(hn::LoadU(dd, sum + c), hn::PromoteTo(dd, value)), dd, sum + c);
    }
  }
}

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {
HWY_EXPORT(transpose);
HWY_EXPORT(add_values);

void fill_block(const BlockLayout& layout, std::byte* block, int head, const f16* rows, std::int64_t stride,
                int tokens) {
  if (head < 0 || head >= layout.kv_heads || tokens < 0 || tokens > layout.block_tokens) {
    throw std::logic_error(fmt::format("fill_block: head {} of {}, {} tokens in a block of {}", head, layout.kv_heads,
                                       tokens, layout.block_tokens));
  }
  const int d = layout.head_dim;
  std::byte* const base = block + static_cast<std::uint64_t>(head) * layout.head_bytes;
  auto* const own_rows = reinterpret_cast<f16*>(base);
  std::byte* const columns = base + layout.columns_offset;
  double sum[256] = {};
  alignas(64) f16 keys[256 * BlockLayout::scale_tokens];  // [d][tile], turned, where they are quantised next

  // A tile of 64 tokens stays in the first-level cache from copying to summing and fills whole lines of the columns.
  constexpr int tile = BlockLayout::scale_tokens;
  for (int first = 0; first < tokens; first += tile) {
    const int count = std::min(tile, tokens - first);
    const f16* const from = rows + first * stride;
    for (int t = 0; t < count; ++t) {
      f16* const to = own_rows + static_cast<std::int64_t>(first + t) * 2 * d;
      if (to != from + t * stride) std::memcpy(to, from + t * stride, layout.row_bytes);
    }
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
    if (layout.columns == ColumnFormat::f16) {
      auto* const to = reinterpret_cast<std::uint16_t*>(columns) + first;
      HWY_DYNAMIC_DISPATCH(transpose)(bits, stride, count, d, to, layout.block_tokens);
    } else {
      if (count < tile) std::memset(keys, 0, static_cast<std::size_t>(d) * tile * sizeof(f16));
      HWY_DYNAMIC_DISPATCH(transpose)(bits, stride, count, d, reinterpret_cast<std::uint16_t*>(keys), tile);
      const std::uint64_t offset = static_cast<std::uint64_t>(first) * layout.column_bytes / layout.block_tokens;
      quantise_subtile(layout, keys, d, columns + offset,
                       base + layout.scales_offset + static_cast<std::uint64_t>(first / tile) * sizeof(f16));
    }
    HWY_DYNAMIC_DISPATCH(add_values)(bits + d, stride, count, d, sum);
  }

  auto* const value_sum = reinterpret_cast<float*>(base + layout.value_sum_offset);
  for (int c = 0; c < d; ++c) value_sum[c] = static_cast<float>(sum[c]);
}

}  // namespace hayloft::offload
#endif
