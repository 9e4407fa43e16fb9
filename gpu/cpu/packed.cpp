#include "gpu/cpu/packed.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/packed.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/packed-inl.h"

#undef HAYLOFT_LOOKS_UP_16
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
#define HAYLOFT_LOOKS_UP_16 1  // a vector is a table of 16 numbers
#else
#define HAYLOFT_LOOKS_UP_16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Codes of kBits bits of Lanes(d) rows as f32 values, column by column of a chunk.
template <int kBits, bool kTable>
class Codes {
 public:
  static constexpr Packing form{kBits};
  static constexpr int kLow = form.low_bits();
  static constexpr int kHigh = form.high_bits();

  Codes(F32 d, const Packing& packing) : zero_(hn::Set(d, 0x1p23f + static_cast<float>(packing.zero))) {
    if constexpr (kBits == 4) {
      for (unsigned code = 0; code < 16; ++code) values_[code] = static_cast<float>(packing.value(code));
#if HAYLOFT_LOOKS_UP_16
      table_ = hn::Load(d, values_);
#endif
    }
  }

  // Goes to the next column, whose number is kColumn.
  template <int kColumn>
  HWY_INLINE F32Vec next(F32 d, const std::byte* chunk, int lane, U32Vec& low, U32Vec& high) const {
    const U32 du;
    const auto* const words = reinterpret_cast<const std::uint32_t*>(chunk) + lane;
    constexpr int kShift = kColumn * kLow % 32;
    if constexpr (kShift == 0) low = hn::LoadU(du, words + kColumn * kLow / 32 * kRows);
    if constexpr (kHigh > 0 && kColumn * kHigh % 32 == 0) {
      high = hn::LoadU(du, words + (kLow + kColumn * kHigh / 32) * kRows);
    }
    auto code = hn::ShiftRight<kShift>(low);
#if HAYLOFT_LOOKS_UP_16
    if constexpr (kBits == 4) return hn::TableLookupLanes(table_, hn::Indices512<float>{code.raw});
#endif
    code = hn::And(code, hn::Set(du, (1u << kLow) - 1));
    if constexpr (kHigh > 0) {
      constexpr int kFrom = kColumn * kHigh % 32;
      constexpr int kRight = kFrom > kLow ? kFrom - kLow : 0, kLeft = kFrom < kLow ? kLow - kFrom : 0;
      const auto above = hn::ShiftLeft<kLeft>(hn::ShiftRight<kRight>(high));
      code = hn::Or(code, hn::And(above, hn::Set(du, ((1u << kHigh) - 1) << kLow)));
    }
    if constexpr (kTable) return hn::GatherIndex(d, values_, hn::BitCast(hn::RebindToSigned<F32>(), code));
    // As the mantissa of a number from 2^23 on, a code is that number's whole part.
    return hn::Sub(hn::BitCast(d, hn::Or(code, hn::Set(du, 0x4b000000u))), zero_);
  }

 private:
  F32Vec zero_;
  HWY_ALIGN float values_[16];
#if HAYLOFT_LOOKS_UP_16
  F32Vec table_;
#endif
};

// One tile's lanes [lane, lane + Lanes(d)) against Q tokens: out [q][lane]. Every fourth column of a group is summed
// apart, which leaves the processor several sums to advance at a time.
template <int Q, class Codes>
HWY_INLINE void tile_products(F32 d, const Codes& codes, const Packing& packing, const std::byte* tile, int lane,
                              const float* x, int cols, const float* sums, float* out) {
  constexpr int kGroup = Codes::form.group();
  constexpr int kChains = 4;
  const auto x_stride = static_cast<std::size_t>(cols);
  const std::size_t sums_stride = x_stride / kGroup;
  F32Vec total[Q];
  for (int q = 0; q < Q; ++q) total[q] = hn::Zero(d);
  each_chunk(d, packing, tile, lane, 0, cols, [&](int column, const std::byte* chunk, const Factors& factors) HWY_ATTR {
    const float* const xs = x + column;
    const std::byte* const scales = chunk + Codes::form.code_bytes();
    const std::byte* const minima = scales + packing.scale_bytes();
    U32Vec low = hn::Zero(U32()), high = low;
    each_group<Codes::form.groups()>([&](auto group) HWY_ATTR {
      constexpr int kFirst = group() * kGroup;
      F32Vec part[Q][kChains];
      each_column<0, kGroup>([&](auto i) HWY_ATTR {
        const auto value = codes.template next<kFirst + i()>(d, chunk, lane, low, high);
        for (int q = 0; q < Q; ++q) {
          const auto input = hn::Set(d, xs[static_cast<std::size_t>(q) * x_stride + kFirst + i()]);
          F32Vec& sum = part[q][i() % kChains];
          sum = i() < kChains ? hn::Mul(value, input) : hn::MulAdd(value, input, sum);
        }
      });
      const auto scale = load_scales(d, packing, scales, group(), lane, factors.scale);
      for (int q = 0; q < Q; ++q) {
        const auto sum = hn::Add(hn::Add(part[q][0], part[q][1]), hn::Add(part[q][2], part[q][3]));
        total[q] = hn::MulAdd(scale, sum, total[q]);
      }
      if (packing.minimum) {
        const auto minimum = load_scales(d, packing, minima, group(), lane, factors.minimum);
        for (int q = 0; q < Q; ++q) {
          const float sum = sums[static_cast<std::size_t>(q) * sums_stride + (column + kFirst) / kGroup];
          total[q] = hn::MulAdd(minimum, hn::Set(d, sum), total[q]);
        }
      }
    });
  });
  for (int q = 0; q < Q; ++q) hn::StoreU(total[q], d, out + q * kRows + lane);
}

template <class Codes>
void multiply(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y) {
  const F32 d;
  const Codes codes(d, w.packing);
  const std::size_t groups = static_cast<std::size_t>(w.cols) / Codes::form.group();
  HWY_ALIGN float out[4 * kRows];
  for (int tile = begin; tile < end; ++tile) {
    const std::byte* const from =
        static_cast<const std::byte*>(w.data) + static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols);
    const int rows = std::min(kRows, w.rows - tile * kRows);
    for_each_run(tokens, [&](auto run, int q) HWY_ATTR {
      for (int lane = 0; lane < kRows; lane += static_cast<int>(hn::Lanes(d))) {
        tile_products<run()>(d, codes, w.packing, from, lane, x + static_cast<std::size_t>(q) * w.cols, w.cols,
                             sums + (w.packing.minimum ? static_cast<std::size_t>(q) * groups : 0), out);
      }
      for (int i = 0; i < run(); ++i) {
        std::memcpy(y + static_cast<std::size_t>(q + i) * w.rows + tile * kRows, out + i * kRows,
                    static_cast<std::size_t>(rows) * sizeof(float));
      }
    });
  }
}

template <class Codes>
void unpack_tiles(const Matrix& w, int first, int last, int begin, int end, float* out) {
  const F32 d;
  const Codes codes(d, w.packing);
  constexpr int kGroup = Codes::form.group();
  const std::size_t stride = static_cast<std::size_t>(last - first) * kRows;
  for (int tile = first; tile < last; ++tile) {
    const std::byte* const from =
        static_cast<const std::byte*>(w.data) + static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols);
    for (int lane = 0; lane < kRows; lane += static_cast<int>(hn::Lanes(d))) {
      float* to = out + (tile - first) * kRows + lane;
      each_chunk(d, w.packing, from, lane, begin, end,
                 [&](int, const std::byte* chunk, const Factors& factors) HWY_ATTR {
                   const std::byte* const scales = chunk + Codes::form.code_bytes();
                   const std::byte* const minima = scales + w.packing.scale_bytes();
                   U32Vec low = hn::Zero(U32()), high = low;
                   each_group<Codes::form.groups()>([&](auto group) HWY_ATTR {
                     const auto scale = load_scales(d, w.packing, scales, group(), lane, factors.scale);
                     auto minimum = hn::Zero(d);
                     if (w.packing.minimum) minimum = load_scales(d, w.packing, minima, group(), lane, factors.minimum);
                     each_column<0, kGroup>([&](auto i) HWY_ATTR {
                       const auto value = codes.template next<group() * kGroup + i()>(d, chunk, lane, low, high);
                       hn::StoreU(hn::MulAdd(scale, value, minimum), d, to);
                       to += stride;
                     });
                   });
                 });
    }
  }
}

// body(null pointer to the type of its codes) for a packing.
template <class Body>
HWY_INLINE void with_codes(const Packing& packing, const Body& body) {
  switch (packing.bits) {
    case 2:
      return body(static_cast<Codes<2, false>*>(nullptr));
    case 3:
      return body(static_cast<Codes<3, false>*>(nullptr));
    case 4:
      if (packing.by_table) return body(static_cast<Codes<4, true>*>(nullptr));
      return body(static_cast<Codes<4, false>*>(nullptr));
    case 5:
      return body(static_cast<Codes<5, false>*>(nullptr));
    case 6:
      return body(static_cast<Codes<6, false>*>(nullptr));
    default:
      return body(static_cast<Codes<8, false>*>(nullptr));
  }
}

void packed_matmul_simd(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y) {
  with_codes(w.packing, [&](auto* codes) HWY_ATTR {
    multiply<std::remove_pointer_t<decltype(codes)>>(x, sums, tokens, w, begin, end, y);
  });
}

void unpack_columns_simd(const Matrix& w, int first, int last, int begin, int end, float* out) {
  with_codes(w.packing, [&](auto* codes) HWY_ATTR {
    unpack_tiles<std::remove_pointer_t<decltype(codes)>>(w, first, last, begin, end, out);
  });
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(packed_matmul_simd);
HWY_EXPORT(unpack_columns_simd);

void sum_groups(const float* x, int tokens, int cols, int group, float* sums) {
  for (int t = 0; t < tokens; ++t) {
    for (int begin = 0; begin < cols; begin += group) {
      float sum[4] = {};
      for (int i = 0; i < group; ++i) sum[i % 4] += *x++;
      *sums++ = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  }
}

void packed_matmul(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y) {
  HWY_DYNAMIC_DISPATCH(packed_matmul_simd)(x, sums, tokens, w, begin, end, y);
}

void unpack_columns(const Matrix& w, int first, int last, int begin, int end, float* out) {
  HWY_DYNAMIC_DISPATCH(unpack_columns_simd)(w, first, last, begin, end, out);
}

}  // namespace hayloft::gpu
#endif
