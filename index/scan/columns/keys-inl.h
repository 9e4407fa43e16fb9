// One column as f32 vectors, to be specialised in a file for each format. Included once per SIMD target by
// foreach_target.h.
#if defined(HAYLOFT_INDEX_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_KEYS_INL_H_
#undef HAYLOFT_INDEX_KEYS_INL_H_
#else
#define HAYLOFT_INDEX_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "index/scan/vectors-inl.h"
#include "offload/store/layout.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
using offload::ColumnFormat;

// The keys of up to 64 tokens of one column that share a scale, the one of `quant_group`: at(t) is that of the tokens
// [t, t + lane_count), t a multiple of lane_count. Level times scale is exact in f32 (7 significant bits and 11), so
// that a key is the same number on every processor. load_cost is about how many instructions a pass takes to make them
// of a column.
template <ColumnFormat format>
class Keys;

// An f16 scale, which is neither negative nor infinite: moved to f32's exponent field it is its value times 2^-112.
HWY_INLINE float scale_at(const std::byte* scales, int quant_group) {
  std::uint16_t bits;
  std::memcpy(&bits, scales + quant_group * static_cast<int>(sizeof bits), sizeof bits);
  return std::bit_cast<float>(std::uint32_t{bits} << 13) * 0x1p112f;
}

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
