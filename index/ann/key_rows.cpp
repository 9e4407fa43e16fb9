#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/ann/key_rows.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "index/ann/key_rows.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Head dimensions are multiples of 8.
using RowTag = hn::CappedTag<float, 8>;

HWY_INLINE hn::Vec<RowTag> key_at(const f16* row, int c) {
  const hn::Rebind<hwy::float16_t, RowTag> halves;
  return hn::PromoteTo(RowTag(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(row) + c));
}

// Two chains of additions: a row of d = 128 is 16 vectors of 8, and an addition takes 4 cycles.
HWY_INLINE float product(const float* q, const f16* row, int d) {
  const RowTag tag;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  auto even = hn::Zero(tag);
  auto odd = hn::Zero(tag);
  int c = 0;
  for (; c + 2 * lanes <= d; c += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(tag, q + c), key_at(row, c), even);
    odd = hn::MulAdd(hn::LoadU(tag, q + c + lanes), key_at(row, c + lanes), odd);
  }
  for (; c < d; c += lanes) even = hn::MulAdd(hn::LoadU(tag, q + c), key_at(row, c), even);
  return hn::GetLane(hn::SumOfLanes(tag, hn::Add(even, odd)));
}

HWY_INLINE void bring_near(const KeyRows& rows, std::int64_t position) {
  const std::byte* const row = rows.row(position);
  for (std::uint64_t at = 0; at < rows.key_bytes(); at += 64) __builtin_prefetch(row + at, 0, 3);
}

void score_rows(const KeyRows& rows, const float* q, const std::int32_t* positions, int n, float* out) {
  constexpr int ahead = 8;  // rows: about what a memory latency takes to score
  const int d = rows.dim();
  f16 space[most_row_elements];
  for (int i = 0; i < std::min(n, ahead); ++i) bring_near(rows, positions[i]);
  for (int i = 0; i < n; ++i) {
    if (i + ahead < n) bring_near(rows, positions[i + ahead]);
    out[i] = product(q, rows.key(positions[i], space), d);
  }
}

void score_row_range(const KeyRows& rows, const float* q, std::int64_t begin, std::int64_t end, float* out) {
  const int d = rows.dim();
  f16 space[most_row_elements];
  for (std::int64_t p = begin; p < end; ++p) out[p - begin] = product(q, rows.key(p, space), d);
}

float centred_product(const f16* a, const f16* b, const float* mean, int d) {
  const RowTag tag;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  auto sum = hn::Zero(tag);
  for (int c = 0; c < d; c += lanes) {
    const auto m = hn::LoadU(tag, mean + c);
    sum = hn::MulAdd(hn::Sub(key_at(a, c), m), hn::Sub(key_at(b, c), m), sum);
  }
  return hn::GetLane(hn::SumOfLanes(tag, sum));
}

void centred_keys(const KeyRows& rows, std::int64_t begin, std::int64_t end, const float* mean, float* out) {
  const RowTag tag;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  const int d = rows.dim();
  f16 space[most_row_elements];
  for (std::int64_t p = begin; p < end; ++p, out += d) {
    const f16* row = rows.key(p, space);
    for (int c = 0; c < d; c += lanes) hn::StoreU(hn::Sub(key_at(row, c), hn::LoadU(tag, mean + c)), tag, out + c);
  }
}

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::index {

HWY_EXPORT(score_rows);
HWY_EXPORT(score_row_range);
HWY_EXPORT(centred_product);
HWY_EXPORT(centred_keys);

KeyRows::KeyRows(const offload::LayerView& view, int head)
    : view_(view),
      head_(head),
      blocks_(view.blocks.data()),
      offset_(static_cast<std::uint64_t>(head) * view.layout->head_bytes),
      row_bytes_(view.layout->row_bytes),
      mask_(view.layout->block_tokens - 1),
      shift_(std::countr_zero(static_cast<unsigned>(view.layout->block_tokens))),
      plain_(view.layout->row_format == offload::RowFormat::f16) {}

void score_rows(const KeyRows& rows, const float* q, const std::int32_t* positions, int n, float* out) {
  HWY_DYNAMIC_DISPATCH(score_rows)(rows, q, positions, n, out);
}

void score_row_range(const KeyRows& rows, const float* q, std::int64_t begin, std::int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(score_row_range)(rows, q, begin, end, out);
}

float centred_product(const f16* a, const f16* b, const float* mean, int d) {
  return HWY_DYNAMIC_DISPATCH(centred_product)(a, b, mean, d);
}

void centred_keys(const KeyRows& rows, std::int64_t begin, std::int64_t end, const float* mean, float* out) {
  HWY_DYNAMIC_DISPATCH(centred_keys)(rows, begin, end, mean, out);
}

}  // namespace hayloft::index
#endif
