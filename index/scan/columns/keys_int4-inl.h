// int4 columns as f32 vectors. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_KEYS_INT4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_KEYS_INT4_INL_H_
#undef HAYLOFT_INDEX_KEYS_INT4_INL_H_
#else
#define HAYLOFT_INDEX_KEYS_INT4_INL_H_
#endif

#include "index/scan/columns/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
template <>
class Keys<ColumnFormat::int4> {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // The 16 keys there can be fill one register, and the instruction that picks from them looks at the low four bits of
  // a lane only: eight bytes spread to 64-bit lanes need nothing but their high nibbles moved to the upper halves.
 public:
  static constexpr int load_cost = 80;
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
  static constexpr int load_cost = 80;
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
