// f16 columns as f32 vectors. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_KEYS_F16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_KEYS_F16_INL_H_
#undef HAYLOFT_INDEX_KEYS_F16_INL_H_
#else
#define HAYLOFT_INDEX_KEYS_F16_INL_H_
#endif

#include "index/scan/columns/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
template <>
class Keys<ColumnFormat::f16> {
 public:
  static constexpr int load_cost = 32;
  HWY_INLINE void open(const std::byte* column, const std::byte* /* scales */, int /* quant_group */) {
    column_ = reinterpret_cast<const hwy::float16_t*>(column);
  }
  HWY_INLINE Vec at(int t) const { return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::float16_t, D>(), column_ + t)); }

 private:
  const hwy::float16_t* column_;
};

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
