// One column as f32 vectors. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_COLUMN_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_COLUMN_KEYS_INL_H_
#undef HAYLOFT_INDEX_COLUMN_KEYS_INL_H_
#else
#define HAYLOFT_INDEX_COLUMN_KEYS_INL_H_
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
// that a key is the same number on every processor.
template <ColumnFormat format>
class Keys;

template <>
class Keys<ColumnFormat::f16> {
 public:
  HWY_INLINE void open(const std::byte* column, const std::byte* /* scales */, int /* quant_group */) {
    column_ = reinterpret_cast<const hwy::float16_t*>(column);
  }
  HWY_INLINE Vec at(int t) const { return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::float16_t, D>(), column_ + t)); }

 private:
  const hwy::float16_t* column_;
};

// An f16 scale, which is neither negative nor infinite: moved to f32's exponent field it is its value times 2^-112.
HWY_INLINE float scale_at(const std::byte* scales, int quant_group) {
  std::uint16_t bits;
  std::memcpy(&bits, scales + quant_group * static_cast<int>(sizeof bits), sizeof bits);
  return std::bit_cast<float>(std::uint32_t{bits} << 13) * 0x1p112f;
}

template <>
class Keys<ColumnFormat::int8> {
 public:
  HWY_INLINE void open(const std::byte* column, const std::byte* scales, int quant_group) {
    column_ = reinterpret_cast<const std::int8_t*>(column);
    scale_ = hn::Set(D(), scale_at(scales, quant_group));
  }
  HWY_INLINE Vec at(int t) const {
    const hn::Rebind<std::int32_t, D> integers;
    const auto levels = hn::LoadU(hn::Rebind<std::int8_t, D>(), column_ + t);
    return hn::Mul(hn::ConvertTo(D(), hn::PromoteTo(integers, levels)), scale_);
  }

 private:
  const std::int8_t* column_;
  Vec scale_;
};

template <>
class Keys<ColumnFormat::int4> {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // The 16 keys there can be fill one register, and the instruction that picks from them looks at the low four bits of
  // a lane only: eight bytes spread to 64-bit lanes need nothing but their high nibbles moved to the upper halves.
 public:
  HWY_INLINE void open(const std::byte* column, const std::byte* scales, int quant_group) {
    HWY_ALIGN static constexpr float levels[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    column_ = column;
    keys_ = hn::Mul(hn::Load(D(), levels), hn::Set(D(), scale_at(scales, quant_group)));
  }
  HWY_INLINE Vec at(int t) const {
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(column_ + t / 2)));
    const __m512i nibbles = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    return Vec{_mm512_permutexvar_ps(nibbles, keys_.raw)};
  }

 private:
  const std::byte* column_;
  Vec keys_;
#else
  // A word that holds the nibbles of all lanes goes to each of them and is shifted until the lane's own nibble is on
  // top, whence it is shifted down again with its sign.
 public:
  HWY_INLINE void open(const std::byte* column, const std::byte* scales, int quant_group) {
    column_ = column;
    scale_ = hn::Set(D(), scale_at(scales, quant_group));
  }
  HWY_INLINE Vec at(int t) const {
    const hn::Rebind<std::int32_t, D> integers;
    std::uint32_t word = 0;
    std::memcpy(&word, column_ + t / 2, lane_count > 1 ? lane_count / 2 : 1);
    if constexpr (lane_count == 1) word >>= t % 2 * 4;
    const auto left = hn::Sub(hn::Set(integers, 28), hn::ShiftLeft<2>(hn::Iota(integers, 0)));
    const auto top = hn::Shl(hn::Set(integers, static_cast<std::int32_t>(word)), left);
    return hn::Mul(hn::ConvertTo(D(), hn::ShiftRight<28>(top)), scale_);
  }

 private:
  static_assert(lane_count <= 8, "a word holds eight nibbles");
  const std::byte* column_;
  Vec scale_;
#endif
};

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
