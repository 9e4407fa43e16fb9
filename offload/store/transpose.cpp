#include "offload/store/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/store/transpose.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Eight components of eight tokens, one 16-byte vector each, transposed: three rounds of interleaving the
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

void transpose_bits(const std::uint16_t* from, std::int64_t stride, int tokens, int components, std::uint16_t* columns,
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

}  // namespace hayloft::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {
HWY_EXPORT(transpose_bits);

void transpose(const f16* rows, std::int64_t stride, int tokens, int components, f16* columns, std::int64_t column) {
  HWY_DYNAMIC_DISPATCH(transpose_bits)
  (reinterpret_cast<const std::uint16_t*>(rows), stride, tokens, components, reinterpret_cast<std::uint16_t*>(columns),
   column);
}

}  // namespace hayloft::offload
#endif
