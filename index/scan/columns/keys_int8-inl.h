// int8 columns as f32 vectors. Included once per SIMD target by foreach_target.h.
#if defined(HAYLOFT_INDEX_KEYS_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_INDEX_KEYS_INT8_INL_H_
#undef HAYLOFT_INDEX_KEYS_INT8_INL_H_
#else
#define HAYLOFT_INDEX_KEYS_INT8_INL_H_
#endif

#include "index/scan/columns/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::index::HWY_NAMESPACE {
template <>
class Keys<ColumnFormat::int8> {
 public:
  static constexpr int load_cost = 80;
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

}  // namespace hayloft::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
