#include "gpu/cpu/packed.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/packed.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

using U32 = hn::RebindToUnsigned<F32>;
using U32Vec = hn::Vec<U32>;
constexpr int kRows = packed_tile_rows;

// Values of 4-bit codes. With 16 lanes the table is one register, and a lookup takes the low four bits of each lane by
// itself; elsewhere codes that are their own values are converted, others gathered.
template <bool kIdentity>
class Table {
 public:
  Table(F32 d, const Packing& packing) {
    for (int i = 0; i < 16; ++i) values_[i] = packing.table[static_cast<std::size_t>(i)];
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    table_ = hn::Load(d, values_);
#else
    (void)d;
#endif
  }
  // Of bits [shift, shift + 4) of each lane.
  template <int kShift>
  HWY_INLINE F32Vec value(F32 d, U32Vec words) const {
    const U32 du;
    const auto codes = hn::ShiftRight<kShift>(words);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    (void)d, (void)du;
    return hn::TableLookupLanes(table_, hn::Indices512<float>{codes.raw});
#else
    const hn::RebindToSigned<F32> di;
    const auto code = hn::BitCast(di, hn::And(codes, hn::Set(du, 15u)));
    if constexpr (kIdentity) return hn::ConvertTo(d, code);
    return hn::GatherIndex(d, values_, code);
#endif
  }

 private:
  HWY_ALIGN float values_[16];
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  F32Vec table_;
#endif
};

// Signed bytes.
struct Bytes {
  Bytes(F32, const Packing&) {}
  template <int kShift>
  HWY_INLINE F32Vec value(F32 d, U32Vec words) const {
    const hn::RebindToSigned<F32> di;
    const auto top = hn::BitCast(di, hn::ShiftLeft<24 - kShift>(words));
    return hn::ConvertTo(d, hn::ShiftRight<24>(top));
  }
};

HWY_INLINE F32Vec load_halves(F32 d, const std::byte* p) {
  return widen_f16(d, load_bits(p));
}

// step(integral_constant<int, shift>, column) for the codes of one word.
template <int kBits, int kAt = 0, class Step>
HWY_INLINE void each_code(const Step& step) {
  if constexpr (kAt * kBits < 32) {
    step(std::integral_constant<int, kAt * kBits>(), kAt);
    each_code<kBits, kAt + 1>(step);
  }
}

// One tile's lanes [lane, lane + Lanes(d)) against Q tokens: y [q][lane]. Words of a group are summed apart, which
// leaves the processor several sums to advance at a time.
template <int Q, int kBits, int kGroup, bool kMinimum, class Codes>
HWY_INLINE void tile_products(F32 d, const Codes& codes, const std::byte* chunk, std::size_t chunk_bytes, int lane,
                              const float* x, std::size_t x_stride, const float* sums, std::size_t sums_stride,
                              int groups, float* out) {
  constexpr int kWords = kGroup * kBits / 32;
  constexpr int kPerWord = 32 / kBits;
  constexpr int kChains = kWords < 4 ? kWords : 4;
  const U32 du;
  F32Vec total[Q];
  for (int q = 0; q < Q; ++q) total[q] = hn::Zero(d);
  for (int g = 0; g < groups; ++g, chunk += chunk_bytes) {
    F32Vec part[Q][kChains];
    for (int q = 0; q < Q; ++q) {
      for (int c = 0; c < kChains; ++c) part[q][c] = hn::Zero(d);
    }
    const float* const xg = x + g * kGroup;
    for (int w = 0; w < kWords; w += kChains) {
      U32Vec words[kChains];
      for (int c = 0; c < kChains; ++c) {
        words[c] = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(chunk) + (w + c) * kRows + lane);
      }
      each_code<kBits>([&](auto shift, int column) HWY_ATTR {
        for (int c = 0; c < kChains; ++c) {
          const auto value = codes.template value<shift()>(d, words[c]);
          for (int q = 0; q < Q; ++q) {
            const auto xs = hn::Set(d, xg[static_cast<std::size_t>(q) * x_stride + (w + c) * kPerWord + column]);
            part[q][c] = hn::MulAdd(value, xs, part[q][c]);
          }
        }
      });
    }
    const std::byte* const halves = chunk + 4 * kWords * kRows + 2 * lane;
    const auto scale = load_halves(d, halves);
    for (int q = 0; q < Q; ++q) {
      for (int c = 1; c < kChains; ++c) part[q][0] = hn::Add(part[q][0], part[q][c]);
      total[q] = hn::MulAdd(scale, part[q][0], total[q]);
    }
    if constexpr (kMinimum) {
      const auto minimum = load_halves(d, halves + 2 * kRows);
      for (int q = 0; q < Q; ++q) {
        total[q] = hn::MulAdd(minimum, hn::Set(d, sums[static_cast<std::size_t>(q) * sums_stride + g]), total[q]);
      }
    }
  }
  for (int q = 0; q < Q; ++q) hn::StoreU(total[q], d, out + q * kRows + lane);
}

template <int kBits, int kGroup, bool kMinimum, class Codes>
void multiply(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y) {
  const F32 d;
  const Codes codes(d, w.packing);
  const std::size_t chunk_bytes = w.packing.chunk_bytes();
  const int groups = w.cols / kGroup;
  HWY_ALIGN float out[4 * kRows];
  for (int tile = begin; tile < end; ++tile) {
    const std::byte* chunk =
        static_cast<const std::byte*>(w.data) + static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols);
    const int rows = std::min(kRows, w.rows - tile * kRows);
    for_each_run(tokens, [&](auto run, int q) HWY_ATTR {
      for (int lane = 0; lane < kRows; lane += static_cast<int>(hn::Lanes(d))) {
        tile_products<run(), kBits, kGroup, kMinimum>(
            d, codes, chunk, chunk_bytes, lane, x + static_cast<std::size_t>(q) * w.cols, w.cols,
            kMinimum ? sums + static_cast<std::size_t>(q) * groups : nullptr, groups, groups, out);
      }
      for (int i = 0; i < run(); ++i) {
        std::memcpy(y + static_cast<std::size_t>(q + i) * w.rows + tile * kRows, out + i * kRows,
                    static_cast<std::size_t>(rows) * sizeof(float));
      }
    });
  }
}

// body(integral_constant<int, bits>, integral_constant<int, group>, bool_constant<minimum>, type of codes) for a
// packing.
template <class Body>
HWY_INLINE void with_packing(const Packing& packing, const Body& body) {
  const auto with_minimum = [&](auto bits, auto group, auto* codes) HWY_ATTR {
    if (packing.minimum) return body(bits, group, std::true_type(), codes);
    body(bits, group, std::false_type(), codes);
  };
  const auto with_group = [&](auto bits, auto* codes) HWY_ATTR {
    if (packing.group == 16) return with_minimum(bits, std::integral_constant<int, 16>(), codes);
    with_minimum(bits, std::integral_constant<int, 32>(), codes);
  };
  if (packing.bits == 8) {
    with_group(std::integral_constant<int, 8>(), static_cast<Bytes*>(nullptr));
  } else if (packing.table == packed_identity) {
    with_group(std::integral_constant<int, 4>(), static_cast<Table<true>*>(nullptr));
  } else {
    with_group(std::integral_constant<int, 4>(), static_cast<Table<false>*>(nullptr));
  }
}

void packed_matmul_simd(const float* x, const float* sums, int tokens, const Matrix& w, int begin, int end, float* y) {
  with_packing(w.packing, [&](auto bits, auto group, auto minimum, auto* codes) HWY_ATTR {
    multiply<bits(), group(), minimum(), std::remove_pointer_t<decltype(codes)>>(x, sums, tokens, w, begin, end, y);
  });
}

template <int kBits, int kGroup, bool kMinimum, class Codes>
void unpack_tiles(const Matrix& w, int first, int last, int begin, int end, float* out) {
  const F32 d;
  const U32 du;
  const Codes codes(d, w.packing);
  constexpr int kWords = kGroup * kBits / 32;
  const std::size_t stride = static_cast<std::size_t>(last - first) * kRows;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int tile = first; tile < last; ++tile) {
    const std::byte* chunk = static_cast<const std::byte*>(w.data) +
                             static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols) +
                             static_cast<std::size_t>(begin / kGroup) * w.packing.chunk_bytes();
    for (int col = begin; col < end; col += kGroup, chunk += w.packing.chunk_bytes()) {
      for (int lane = 0; lane < kRows; lane += lanes) {
        const std::byte* const halves = chunk + 4 * kWords * kRows + 2 * lane;
        const auto scale = load_halves(d, halves);
        const auto minimum = kMinimum ? load_halves(d, halves + 2 * kRows) : hn::Zero(d);
        float* to = out + static_cast<std::size_t>(col - begin) * stride + (tile - first) * kRows + lane;
        for (int word = 0; word < kWords; ++word) {
          const auto bits = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(chunk) + word * kRows + lane);
          each_code<kBits>([&](auto shift, int) HWY_ATTR {
            const auto value = codes.template value<shift()>(d, bits);
            hn::StoreU(kMinimum ? hn::MulAdd(scale, value, minimum) : hn::Mul(scale, value), d, to);
            to += stride;
          });
        }
      }
    }
  }
}

void unpack_columns_simd(const Matrix& w, int first, int last, int begin, int end, float* out) {
  with_packing(w.packing, [&](auto bits, auto group, auto minimum, auto* codes) HWY_ATTR {
    unpack_tiles<bits(), group(), minimum(), std::remove_pointer_t<decltype(codes)>>(w, first, last, begin, end, out);
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

void unpack_row(const Matrix& w, int row, float* out) {
  const Packing& packing = w.packing;
  const std::byte* chunk = static_cast<const std::byte*>(w.data) +
                           static_cast<std::size_t>(row / packed_tile_rows) * packing.tile_bytes(w.cols);
  const int lane = row % packed_tile_rows;
  for (int col = 0; col < w.cols; col += packing.group, chunk += packing.chunk_bytes()) {
    const std::byte* halves = chunk + 4 * packing.words() * packed_tile_rows;
    f16 scale, minimum{};
    std::memcpy(&scale, halves + 2 * lane, 2);
    if (packing.minimum) std::memcpy(&minimum, halves + 2 * (packed_tile_rows + lane), 2);
    for (int i = 0; i < packing.group; ++i) {
      const int per_word = 32 / packing.bits;
      std::uint32_t word;
      std::memcpy(&word, chunk + 4 * (i / per_word * packed_tile_rows + lane), 4);
      const std::uint32_t code = word >> (i % per_word * packing.bits);
      const int value = packing.bits == 8 ? static_cast<std::int8_t>(code & 255u) : packing.table[code & 15u];
      *out++ = to_float(scale) * static_cast<float>(value) + to_float(minimum);
    }
  }
}

}  // namespace hayloft::gpu
#endif
