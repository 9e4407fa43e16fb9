#include "gpu/cpu/packed.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/packed.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/packed-inl.h"
#include "gpu/cpu/scratch.h"

#undef HAYLOFT_LOOKS_UP_16
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
#define HAYLOFT_LOOKS_UP_16 1  // a vector is a table of 16 numbers
#else
#define HAYLOFT_LOOKS_UP_16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Codes of kBits bits of Lanes(d) rows as f32 values, column by column of a chunk. Every fourth column of a group is
// summed apart (its chain), which leaves the processor several sums to advance at a time. Codes of 4 and 8 bits stay
// where they lie in their word, so the values of a chain are `kFactor` too large: a power of two, which rounds nothing.
template <int kBits, bool kTable, bool kHasZero = true>
class Codes {
 public:
  static constexpr Packing form{kBits};
  static constexpr int kLow = form.low_bits();
  static constexpr int kHigh = form.high_bits();
  static constexpr bool kLooksUp = kBits == 4 && (kTable || HAYLOFT_LOOKS_UP_16);
  static constexpr bool kStay = !kLooksUp && kHigh == 0 && kLow >= 4;
  // The place in its word, and so the exponent of the factor, of the codes of a chain. The upper half of a word of
  // 4-bit codes moves down, and so does the highest byte, which as a whole number would be negative.
  static constexpr int place(int chain) { return !kStay ? 0 : kLow == 4 ? 4 * chain : chain < 3 ? 8 * chain : 0; }
  static constexpr float factor(int chain) { return static_cast<float>(1 << place(chain)); }

  Codes(F32 d, const Packing& packing) {
    for (int chain = 0; chain < 4; ++chain) {
      zero_[chain] = hn::Set(d, kStay ? factor(chain) * packing.zero : 0x1p23f + packing.zero);
    }
    if constexpr (kBits == 4) {
      for (unsigned code = 0; code < 16; ++code) values_[code] = static_cast<float>(packing.value(code));
#if HAYLOFT_LOOKS_UP_16
      table_ = hn::Load(d, values_);
#endif
    }
  }

  // Goes to the next column, whose number is kColumn: its values times factor(kColumn % 4).
  template <int kColumn>
  HWY_INLINE F32Vec next(F32 d, const std::byte* chunk, int lane, U32Vec& low, U32Vec& high) const {
    const U32 du;
    const auto* const words = reinterpret_cast<const std::uint32_t*>(chunk) + lane;
    constexpr int kShift = kColumn * kLow % 32, kChain = kColumn % 4;
    if constexpr (kShift == 0) low = hn::LoadU(du, words + kColumn * kLow / 32 * kRows);
    if constexpr (kStay) {
      if constexpr (kLow == 4 && kShift == 16) low = hn::ShiftRight<16>(low);
      constexpr std::uint32_t kMask = ((1u << kLow) - 1) << place(kChain);
      const auto code = kLow == 8 && kChain == 3 ? hn::ShiftRight<24>(low) : hn::And(low, hn::Set(du, kMask));
      const auto value = hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<F32>(), code));
      return kHasZero ? hn::Sub(value, zero_[kChain]) : value;
    }
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
    return hn::Sub(hn::BitCast(d, hn::Or(code, hn::Set(du, 0x4b000000u))), zero_[0]);
  }

  // next() without the factor.
  template <int kColumn>
  HWY_INLINE F32Vec next_value(F32 d, const std::byte* chunk, int lane, U32Vec& low, U32Vec& high) const {
    const auto value = next<kColumn>(d, chunk, lane, low, high);
    return place(kColumn % 4) == 0 ? value : hn::Mul(value, hn::Set(d, 1 / factor(kColumn % 4)));
  }

  // The sum of a group, of the sums of its chains.
  static HWY_INLINE F32Vec sum(F32 d, const F32Vec (&chains)[4]) {
    if constexpr (!kStay) return hn::Add(hn::Add(chains[0], chains[1]), hn::Add(chains[2], chains[3]));
    const auto less = [&](int chain) HAYLOFT_KERNEL_LAMBDA { return hn::Set(d, 1 / factor(chain)); };
    return hn::Add(hn::MulAdd(chains[1], less(1), chains[0]),
                   hn::MulAdd(chains[2], less(2), hn::Mul(chains[3], less(3))));
  }

 private:
  F32Vec zero_[4];
  HWY_ALIGN float values_[16];
#if HAYLOFT_LOOKS_UP_16
  F32Vec table_;
#endif
};

// V vectors of one tile's rows, from row `lane` on, against Q tokens: out [q][row].
template <int Q, int V, class Codes>
HWY_INLINE void tile_products(F32 d, const Codes& codes, const Packing& packing, const std::byte* tile, int lane,
                              const float* x, int cols, const float* sums, float* out) {
  constexpr int kGroup = Codes::form.group();
  constexpr int kChains = 4;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto x_stride = static_cast<std::size_t>(cols);
  const std::size_t sums_stride = x_stride / kGroup;
  F32Vec total[Q][V];
  for (auto& of_token : total)
    for (F32Vec& start : of_token) start = hn::Zero(d);
  each_chunk<V>(
      d, packing, tile, lane, 0, cols, [&](int column, const std::byte* chunk, const Factors(&factors)[V]) HWY_ATTR {
        if (lane == 0) prefetch_ahead<Codes::form.bits>(chunk, packing);
        const float* const xs = x + column;
        const std::byte* const scales = chunk + Codes::form.code_bytes();
        const std::byte* const minima = scales + packing.scale_bytes();
        U32Vec low[V], high[V];
        for (int v = 0; v < V; ++v) low[v] = high[v] = hn::Zero(U32());
        each_group<Codes::form.groups()>([&](auto group) HWY_ATTR {
          constexpr int kFirst = group() * kGroup;
          F32Vec part[Q][V][kChains];
          each_column<0, kGroup>([&](auto i) HWY_ATTR {
            F32Vec value[V];
            for (int v = 0; v < V; ++v) {
              value[v] = codes.template next<kFirst + i()>(d, chunk, lane + v * lanes, low[v], high[v]);
            }
            for (int q = 0; q < Q; ++q) {
              const auto input = hn::Set(d, xs[static_cast<std::size_t>(q) * x_stride + kFirst + i()]);
              for (int v = 0; v < V; ++v) {
                F32Vec& sum = part[q][v][i() % kChains];
                sum = i() < kChains ? hn::Mul(value[v], input) : hn::MulAdd(value[v], input, sum);
              }
            }
          });
          for (int v = 0; v < V; ++v) {
            const auto scale = load_scales(d, packing, scales, group(), lane + v * lanes, factors[v].scale);
            for (int q = 0; q < Q; ++q) total[q][v] = hn::MulAdd(scale, Codes::sum(d, part[q][v]), total[q][v]);
            if (packing.minimum) {
              const auto minimum = load_scales(d, packing, minima, group(), lane + v * lanes, factors[v].minimum);
              for (int q = 0; q < Q; ++q) {
                const float sum = sums[static_cast<std::size_t>(q) * sums_stride + (column + kFirst) / kGroup];
                total[q][v] = hn::MulAdd(minimum, hn::Set(d, sum), total[q][v]);
              }
            }
          }
        });
      });
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) hn::StoreU(total[q][v], d, out + q * kRows + lane + v * lanes);
}

// tile_products() of one token, in registers that nothing around it claims.
template <int V, class Codes>
HWY_NOINLINE void tile_products_of_one(F32 d, const Codes& codes, const Packing& packing, const std::byte* tile,
                                       int lane, const float* x, int cols, const float* sums, float* out) {
  tile_products<1, V>(d, codes, packing, tile, lane, x, cols, sums, out);
}

// As `packing`, with what the type of the codes says of it known when this is compiled.
template <class Codes>
HWY_INLINE Packing layout_of(const Packing& packing) {
  Packing layout = Codes::form;
  layout.minimum = packing.minimum;
  layout.products = packing.products;
  return layout;
}

// Tokens from which on it pays to take codes apart once for all. Where a vector is as long as a tile has rows it never
// does: taking codes apart goes on beside the multiplications there.
constexpr int kManyTokens = 8;
constexpr bool kUnpacksForMany = HWY_MAX_BYTES < 64;

// The sums of one group of columns for Q tokens: values f32 [columns][kRows] of the codes, total [q][kRows]. In the
// order of tile_products(): every fourth column is summed apart.
template <int Q, int kGroup>
HWY_INLINE void group_products(F32 d, const float* values, const float* x, std::size_t x_stride, const float* scale,
                               const float* minimum, const float* sums, std::size_t sums_stride, float* total) {
  constexpr int kVectors = kRows / static_cast<int>(hn::MaxLanes(F32()));
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto two_chains = [&](int first, F32Vec(&out)[Q][kVectors]) HAYLOFT_KERNEL_LAMBDA {
    F32Vec sum[2][Q][kVectors];
    for (auto& chain : sum)
      for (auto& of_token : chain)
        for (F32Vec& start : of_token) start = hn::Zero(d);
    for (int i = first; i < kGroup; i += 4) {
      for (int chain = 0; chain < 2; ++chain) {
        F32Vec value[kVectors];
        for (int v = 0; v < kVectors; ++v) value[v] = hn::Load(d, values + (i + chain) * kRows + v * lanes);
        for (int q = 0; q < Q; ++q) {
          const auto input =
              hn::Set(d, x[static_cast<std::size_t>(q) * x_stride + static_cast<std::size_t>(i + chain)]);
          for (int v = 0; v < kVectors; ++v) sum[chain][q][v] = hn::MulAdd(value[v], input, sum[chain][q][v]);
        }
      }
    }
    for (int q = 0; q < Q; ++q)
      for (int v = 0; v < kVectors; ++v) out[q][v] = hn::Add(sum[0][q][v], sum[1][q][v]);
  };
  F32Vec all[Q][kVectors], pair[Q][kVectors];
  two_chains(0, all);
  two_chains(2, pair);
  for (int q = 0; q < Q; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      float* const to = total + q * kRows + v * lanes;
      auto y = hn::MulAdd(hn::Load(d, scale + v * lanes), hn::Add(all[q][v], pair[q][v]), hn::Load(d, to));
      if (minimum != nullptr) {
        const auto sum = hn::Set(d, sums[static_cast<std::size_t>(q) * sums_stride]);
        y = hn::MulAdd(hn::Load(d, minimum + v * lanes), sum, y);
      }
      hn::Store(y, d, to);
    }
  }
}

// tile_products() of a whole tile for many tokens: total [tokens][kRows], zeros before.
template <class Codes>
HWY_NOINLINE void tile_products_of_many(F32 d, const Codes& codes, const Packing& packed, const std::byte* tile,
                                        const float* x, int tokens, int cols, const float* sums, float* total) {
  constexpr int kGroup = Codes::form.group();
  const Packing packing = layout_of<Codes>(packed);
  const auto x_stride = static_cast<std::size_t>(cols), sums_stride = x_stride / kGroup;
  HWY_ALIGN float values[kColumns * kRows];
  HWY_ALIGN float scales[2 * kRows], minima[2 * kRows];
  for (int column = 0; column < cols; column += kColumns) {
    for (int lane = 0; lane < kRows; lane += static_cast<int>(hn::Lanes(d))) {
      each_chunk(d, packing, tile, lane, column, column + kColumns,
                 [&](int, const std::byte* chunk, const Factors& factors) HAYLOFT_KERNEL_LAMBDA {
                   const std::byte* const from = chunk + Codes::form.code_bytes();
                   U32Vec low = hn::Zero(U32()), high = low;
                   each_column<0, kColumns>([&](auto i) HAYLOFT_KERNEL_LAMBDA {
                     hn::Store(codes.template next_value<i()>(d, chunk, lane, low, high), d,
                               values + i() * kRows + lane);
                   });
                   for (int g = 0; g < Codes::form.groups(); ++g) {
                     hn::Store(load_scales(d, packing, from, g, lane, factors.scale), d, scales + g * kRows + lane);
                     if (!packing.minimum) continue;
                     hn::Store(load_scales(d, packing, from + packing.scale_bytes(), g, lane, factors.minimum), d,
                               minima + g * kRows + lane);
                   }
                 });
    }
    for (int g = 0; g < Codes::form.groups(); ++g) {
      const int first = column + g * kGroup;
      for_each_run(tokens, [&](auto run, int q) HAYLOFT_KERNEL_LAMBDA {
        const auto token = static_cast<std::size_t>(q);
        group_products<run(), kGroup>(d, values + g * kGroup * kRows, x + token * x_stride + first, x_stride,
                                      scales + g * kRows, packing.minimum ? minima + g * kRows : nullptr,
                                      packing.minimum ? sums + token * sums_stride + first / kGroup : nullptr,
                                      sums_stride, total + q * kRows);
      });
    }
  }
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
    if constexpr (kUnpacksForMany) {
      if (tokens >= kManyTokens) {
        float* const total = scratch(static_cast<std::size_t>(tokens) * kRows);
        std::fill_n(total, tokens * kRows, 0.0f);
        tile_products_of_many(d, codes, w.packing, from, x, tokens, w.cols, sums, total);
        for (int q = 0; q < tokens; ++q) {
          std::memcpy(y + static_cast<std::size_t>(q) * w.rows + tile * kRows, total + q * kRows,
                      static_cast<std::size_t>(rows) * sizeof(float));
        }
        continue;
      }
    }
    for_each_run(tokens, [&](auto run, int q) HWY_ATTR {
      constexpr int kVectors = run() == 1 && Codes::form.bits == 4 ? kVectorsAtOnce : 1;  // that registers hold
      const float* const of_token = x + static_cast<std::size_t>(q) * w.cols;
      const float* const its_sums = sums + (w.packing.minimum ? static_cast<std::size_t>(q) * groups : 0);
      for (int lane = 0; lane < kRows; lane += kVectors * static_cast<int>(hn::Lanes(d))) {
        if constexpr (run() == 1) {
          tile_products_of_one<kVectors>(d, codes, w.packing, from, lane, of_token, w.cols, its_sums, out);
        } else {
          tile_products<run(), kVectors>(d, codes, w.packing, from, lane, of_token, w.cols, its_sums, out);
        }
      }
      for (int i = 0; i < run(); ++i) {
        std::memcpy(y + static_cast<std::size_t>(q + i) * w.rows + tile * kRows, out + i * kRows,
                    static_cast<std::size_t>(rows) * sizeof(float));
      }
    });
  }
}

template <class Codes>
void unpack_tile_of(const Matrix& w, int tile, int begin, int end, float* out, std::size_t stride) {
  const F32 d;
  const Codes codes(d, w.packing);
  constexpr int kGroup = Codes::form.group();
  const std::byte* const from =
      static_cast<const std::byte*>(w.data) + static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols);
  for (int lane = 0; lane < kRows; lane += static_cast<int>(hn::Lanes(d))) {
    float* to = out + lane;
    each_chunk(d, w.packing, from, lane, begin, end,
               [&](int, const std::byte* chunk, const Factors& factors) HAYLOFT_KERNEL_LAMBDA {
                 const std::byte* const scales = chunk + Codes::form.code_bytes();
                 const std::byte* const minima = scales + w.packing.scale_bytes();
                 U32Vec low = hn::Zero(U32()), high = low;
                 each_group<Codes::form.groups()>([&](auto group) HAYLOFT_KERNEL_LAMBDA {
                   const auto scale = load_scales(d, w.packing, scales, group(), lane, factors.scale);
                   auto minimum = hn::Zero(d);
                   if (w.packing.minimum) minimum = load_scales(d, w.packing, minima, group(), lane, factors.minimum);
                   each_column<0, kGroup>([&](auto i) HAYLOFT_KERNEL_LAMBDA {
                     const auto value = codes.template next_value<group() * kGroup + i()>(d, chunk, lane, low, high);
                     hn::StoreU(hn::MulAdd(scale, value, minimum), d, to);
                     to += stride;
                   });
                 });
               });
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
      if (packing.zero == 0) return body(static_cast<Codes<4, false, false>*>(nullptr));
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

void unpack_tile_simd(const Matrix& w, int tile, int begin, int end, float* out, std::size_t stride) {
  with_codes(w.packing, [&](auto* codes) HWY_ATTR {
    unpack_tile_of<std::remove_pointer_t<decltype(codes)>>(w, tile, begin, end, out, stride);
  });
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(packed_matmul_simd);
HWY_EXPORT(unpack_tile_simd);

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

void unpack_tile(const Matrix& w, int tile, int begin, int end, float* out, std::size_t stride) {
  HWY_DYNAMIC_DISPATCH(unpack_tile_simd)(w, tile, begin, end, out, stride);
}

}  // namespace hayloft::gpu
#endif
