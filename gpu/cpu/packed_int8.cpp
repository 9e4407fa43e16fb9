#include "gpu/cpu/packed_int8.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/packed_int8.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/packed-inl.h"

// How bytes are multiplied where there is no VNNI: two at a time into 16 bits, or one by one.
#undef HAYLOFT_PAIRS
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
#define HAYLOFT_PAIRS 1
#else
#define HAYLOFT_PAIRS 0
#endif
#undef HAYLOFT_VNNI
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3
#define HAYLOFT_VNNI 1  // if the processor has it besides
#else
#define HAYLOFT_VNNI 0
#endif

#ifndef HAYLOFT_GPU_CPU_MAY_USE_VNNI
#define HAYLOFT_GPU_CPU_MAY_USE_VNNI
namespace hayloft::gpu {
namespace {

// Asking the processor takes microseconds in a virtual machine, so it is asked once.
std::atomic<int> vnni_known = -1;
bool may_use_vnni() {
  int known = vnni_known.load(std::memory_order_relaxed);
  if (known < 0) {
    known = (hwy::SupportedTargets() & HWY_AVX3_DL) != 0 ? 1 : 0;
    vnni_known.store(known, std::memory_order_relaxed);
  }
  return known == 1;
}

}  // namespace
}  // namespace hayloft::gpu
#endif

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;
using I32Vec = hn::Vec<I32>;
#if HWY_TARGET != HWY_SCALAR
using I16 = hn::RepartitionToNarrow<I32>;
using I16Vec = hn::Vec<I16>;
using I8 = hn::RepartitionToNarrow<I16>;
using U8 = hn::RebindToUnsigned<I8>;
using I8Vec = hn::Vec<I8>;
#endif

#if HAYLOFT_PAIRS
// Lanes of 16 bits: a0 b0 + a1 b1, of unsigned a and signed b.
HWY_INLINE I16Vec multiply_pairs(U32Vec a, I8Vec b) {
#if HWY_TARGET <= HWY_AVX3
  return I16Vec{_mm512_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return I16Vec{_mm256_maddubs_epi16(a.raw, b.raw)};
#else
  return I16Vec{_mm_maddubs_epi16(a.raw, b.raw)};
#endif
}
// Lanes of 32 bits: the sums of pairs.
HWY_INLINE I32Vec sum_pairs(I16Vec a) {
  const auto one = hn::Set(I16(), std::int16_t{1});
#if HWY_TARGET <= HWY_AVX3
  return I32Vec{_mm512_madd_epi16(a.raw, one.raw)};
#elif HWY_TARGET == HWY_AVX2
  return I32Vec{_mm256_madd_epi16(a.raw, one.raw)};
#else
  return I32Vec{_mm_madd_epi16(a.raw, one.raw)};
#endif
}
// b with the sign of a; zero where a is, or b where the product is zero anyway.
HWY_INLINE I8Vec with_sign(I8Vec a, I8Vec b) {
#if HWY_TARGET <= HWY_AVX3
  return I8Vec{_mm512_mask_sub_epi8(b.raw, _mm512_movepi8_mask(a.raw), _mm512_setzero_si512(), b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return I8Vec{_mm256_sign_epi8(b.raw, a.raw)};
#else
  return I8Vec{_mm_sign_epi8(b.raw, a.raw)};
#endif
}
#endif

// Codes of kBits bits of Lanes(d) rows, four columns in the bytes of a lane: dword j holds the columns that
// column_of(4 j + i) says. Their bytes are unsigned; a weight is its byte less offset().
template <int kBits, bool kTable>
class Bytes {
 public:
  static constexpr Packing form{kBits};
  static constexpr int kLow = form.low_bits(), kHigh = form.high_bits();
  static constexpr int kPerWord = 8 / kLow;            // dwords of a word
  static constexpr bool whole = kBits == 8 || kTable;  // bytes up to 255

  explicit Bytes(const Packing& packing) : offset_(packing.by_table ? 128 : packing.zero) {
    for (std::size_t i = 0; i < sizeof table_; ++i) table_[i] = static_cast<std::uint8_t>(packing.table[i % 16] + 128);
  }
  int offset() const { return offset_; }

  template <int kDword>
  HWY_INLINE U32Vec get(const std::byte* chunk, int lane, U32Vec& low, U32Vec& high) const {
    const U32 du;
    constexpr int kWord = kDword / kPerWord, kPart = kDword % kPerWord;
    const auto* const words = reinterpret_cast<const std::uint32_t*>(chunk) + lane;
    if constexpr (kPart == 0) {
      low = hn::LoadU(du, words + kWord * kRows);
      if constexpr (kHigh > 0) high = spread<kWord>(words);
    }
    if constexpr (kBits == 8) return low;
    auto code = hn::And(hn::ShiftRight<kPart * kLow>(low), every(kLow == 4 ? 0x0f : 0x03));
    if constexpr (kHigh > 0) {
      const auto above = hn::And(high, every(((1 << kHigh) - 1) << (kPart * kHigh)));
      constexpr int kLeft = kLow - kPart * kHigh;
      if constexpr (kLeft >= 0) code = hn::Or(code, hn::ShiftLeft<kLeft>(above));
      if constexpr (kLeft < 0) code = hn::Or(code, hn::ShiftRight<-kLeft>(above));
    }
    if constexpr (kTable) return look_up(code);
    return code;
  }

 private:
  static HWY_INLINE U32Vec every(unsigned byte) { return hn::Set(U32(), byte * 0x01010101u); }

  // The high bits of the columns of a word, those of its byte i in byte i from the lowest bit on.
  template <int kWord>
  static HWY_INLINE U32Vec spread(const std::uint32_t* words) {
    const U32 du;
    constexpr int kBitsOfWord = kHigh * 32 / kLow;  // 8 or 16
    constexpr int kAt = kWord * kBitsOfWord;
    auto v = hn::LoadU(du, words + (kLow + kAt / 32) * kRows);
    v = hn::And(hn::ShiftRight<kAt % 32>(v), hn::Set(du, (1u << kBitsOfWord) - 1));
    constexpr int kFar = kBitsOfWord == 16 ? 8 : 12, kNear = kBitsOfWord == 16 ? 4 : 6;
    v = hn::And(hn::Or(v, hn::ShiftLeft<kFar>(v)), hn::Set(du, kBitsOfWord == 16 ? 0x00ff00ffu : 0x000f000fu));
    return hn::And(hn::Or(v, hn::ShiftLeft<kNear>(v)), every(kBitsOfWord == 16 ? 0x0f : 0x03));
  }

  HWY_INLINE U32Vec look_up(U32Vec code) const {
#if HWY_TARGET == HWY_SCALAR
    HWY_ALIGN std::uint8_t bytes[4];
    std::uint32_t word = hn::GetLane(code);
    std::memcpy(bytes, &word, 4);
    for (auto& byte : bytes) byte = table_[byte];
    std::memcpy(&word, bytes, 4);
    return hn::Set(U32(), word);
#else
    return hn::BitCast(U32(), hn::TableLookupBytes(hn::Load(U8(), table_), hn::BitCast(U8(), code)));
#endif
  }

  int offset_;
  HWY_ALIGN std::uint8_t table_[64];
};

// The column of a chunk whose input meets byte `at` of a chunk's codes.
constexpr int column_of(int low_bits, int at) {
  const int parts = 8 / low_bits, word = at / (4 * parts), part = at / 4 % parts;
  return word * 4 * parts + at % 4 * parts + part;
}

// Adds up the products of Q tokens' inputs with the codes of a group, dword by dword.
template <int Q, class Bytes>
class Products {
 public:
#if HAYLOFT_PAIRS
  // A pair of products is 2 * 127 * 31 at most of five bits, and so on: so many of them fit 16 bits, of sixteen columns
  // with one scale.
  static constexpr int kTogether = Bytes::whole ? 1 : Bytes::form.bits == 6 ? 2 : 4;
  // Whole bytes are multiplied as signed ones, 128 less.
  HWY_INLINE void begin(int q, std::int32_t sum, int offset) {
    sum_[q] = hn::Set(I32(), ((Bytes::whole ? 128 : 0) - offset) * sum);
  }
  template <int kDword>
  HWY_INLINE void add(U32Vec codes, const std::int32_t* const (&inputs)[Q]) {
    [[maybe_unused]] I8Vec weights = hn::Zero(I8());
    if constexpr (Bytes::whole) {
      weights = hn::BitCast(I8(), hn::Xor(codes, hn::Set(U32(), 0x80808080u)));
      codes = hn::BitCast(U32(), hn::Abs(weights));
    }
    for (int q = 0; q < Q; ++q) {
      auto x = hn::BitCast(I8(), hn::Set(I32(), inputs[q][kDword]));
      if constexpr (Bytes::whole) x = with_sign(weights, x);
      const auto pairs = multiply_pairs(codes, x);
      part_[q] = kDword % kTogether == 0 ? pairs : hn::Add(part_[q], pairs);
      if constexpr ((kDword + 1) % kTogether == 0) sum_[q] = hn::Add(sum_[q], sum_pairs(part_[q]));
    }
  }
#else
  HWY_INLINE void begin(int q, std::int32_t sum, int offset) {
    sum_[q] = hn::Set(I32(), -offset * sum);
  }
  template <int kDword>
  HWY_INLINE void add(U32Vec codes, const std::int32_t* const (&inputs)[Q]) {
    for (int q = 0; q < Q; ++q) {
      for (int i = 0; i < 4; ++i) {
        const auto byte = static_cast<std::int8_t>(static_cast<std::uint32_t>(inputs[q][kDword]) >> 8 * i);
        const auto code = hn::And(i == 0 ? codes : hn::ShiftRightSame(codes, 8 * i), hn::Set(U32(), 0xffu));
        sum_[q] = hn::Add(sum_[q], hn::Mul(hn::BitCast(I32(), code), hn::Set(I32(), byte)));
      }
    }
  }
#endif
  HWY_INLINE F32Vec sum(F32 d, int q) const {
    return hn::ConvertTo(d, sum_[q]);
  }
  static constexpr int most = 4;  // tokens at once, which the registers hold

 private:
  I32Vec sum_[Q];
#if HAYLOFT_PAIRS
  I16Vec part_[Q];
#endif
};

#if HAYLOFT_VNNI
// Likewise by VNNI, which multiplies four bytes of each lane and adds them up. Highway 1.0 has no name for it, and its
// own target of processors that have it names another extension to the compiler, hence the instruction itself.
template <int Q, class Bytes>
class VnniProducts {
 public:
  HWY_INLINE void begin(int q, std::int32_t sum, int offset) { sum_[q] = hn::Set(I32(), -offset * sum); }
  template <int kDword>
  HWY_INLINE void add(U32Vec codes, const std::int32_t* const (&inputs)[Q]) {
    for (int q = 0; q < Q; ++q) {
      asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum_[q].raw) : "v"(codes.raw), "m"(inputs[q][kDword]));
    }
  }
  HWY_INLINE F32Vec sum(F32 d, int q) const { return hn::ConvertTo(d, sum_[q]); }
  static constexpr int most = 8;

 private:
  I32Vec sum_[Q];
};
#endif

// One tile's lanes [lane, lane + Lanes(d)) against Q tokens from token `first` on: out [q][lane].
template <int Q, template <int, class> class Products, class Bytes>
HWY_INLINE void tile_products_int8(F32 d, const Bytes& bytes, const Packing& packing, const std::byte* tile, int lane,
                                   const Int8Inputs& inputs, int first, int cols, float* out) {
  constexpr int kGroups = Bytes::form.groups();
  const std::size_t chunks = static_cast<std::size_t>(cols) / kColumns;
  const std::size_t begin = static_cast<std::size_t>(first) * chunks;
  F32Vec total[Q];
  for (int q = 0; q < Q; ++q) total[q] = hn::Zero(d);
  each_chunk(d, packing, tile, lane, 0, cols, [&](int column, const std::byte* chunk, const Factors& factors) HWY_ATTR {
    const std::size_t at = begin + static_cast<std::size_t>(column) / kColumns;
    const std::int32_t* xs[Q];
    for (int q = 0; q < Q; ++q) {
      xs[q] = reinterpret_cast<const std::int32_t*>(inputs.codes.data() + (at + q * chunks) * kColumns);
    }
    const std::byte* const scales = chunk + Bytes::form.code_bytes();
    const std::byte* const minima = scales + packing.scale_bytes();
    U32Vec low = hn::Zero(U32()), high = low;
    F32Vec part[Q];  // of the columns that share a scale
    each_group<2>([&](auto half) HWY_ATTR {
      Products<Q, Bytes> products;
      for (int q = 0; q < Q; ++q) products.begin(q, inputs.sums[2 * (at + q * chunks) + half()], bytes.offset());
      each_column<half() * 4, half() * 4 + 4>([&](auto dword) HWY_ATTR {
        products.template add<dword()>(bytes.template get<dword()>(chunk, lane, low, high), xs);
      });
      constexpr bool kBegins = half() == 0 || kGroups == 2, kEnds = half() == 1 || kGroups == 2;
      for (int q = 0; q < Q; ++q) {
        const auto factor = hn::Set(d, inputs.scales[2 * (at + q * chunks) + half()]);
        part[q] = kBegins ? hn::Mul(products.sum(d, q), factor) : hn::MulAdd(products.sum(d, q), factor, part[q]);
      }
      if constexpr (kEnds) {
        constexpr int kFirst = kGroups == 2 ? half() : 0;  // half of the weights' group
        const auto scale = load_scales(d, packing, scales, kFirst, lane, factors.scale);
        for (int q = 0; q < Q; ++q) total[q] = hn::MulAdd(scale, part[q], total[q]);
        if (packing.minimum) {
          const auto minimum = load_scales(d, packing, minima, kFirst, lane, factors.minimum);
          for (int q = 0; q < Q; ++q) {
            const std::size_t of = 2 * (at + q * chunks);
            float sum = 0;
            for (int h = kFirst; h <= half(); ++h)
              sum += inputs.scales[of + h] * static_cast<float>(inputs.sums[of + h]);
            total[q] = hn::MulAdd(minimum, hn::Set(d, sum), total[q]);
          }
        }
      }
    });
  });
  for (int q = 0; q < Q; ++q) hn::StoreU(total[q], d, out + q * kRows + lane);
}

template <template <int, class> class Products, class Bytes>
void multiply_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
  constexpr int kTokens = 256;  // whose inputs stay in the second-level cache while the tiles pass
  constexpr int kMost = Products<1, Bytes>::most;
  const F32 d;
  const Bytes bytes(w.packing);
  HWY_ALIGN float out[kMost * kRows];
  const auto run = [&](auto count, const std::byte* tile, int rows, int first, float* to) HWY_ATTR {
    for (int lane = 0; lane < kRows; lane += static_cast<int>(hn::Lanes(d))) {
      tile_products_int8<count(), Products>(d, bytes, w.packing, tile, lane, inputs, first, w.cols, out);
    }
    for (int i = 0; i < count(); ++i) {
      std::memcpy(to + static_cast<std::size_t>(first + i) * w.rows, out + i * kRows,
                  static_cast<std::size_t>(rows) * sizeof(float));
    }
  };
  for (int block = 0; block < tokens; block += kTokens) {
    const int last = std::min(block + kTokens, tokens);
    for (int tile = begin; tile < end; ++tile) {
      const std::byte* const from =
          static_cast<const std::byte*>(w.data) + static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols);
      const int rows = std::min(kRows, w.rows - tile * kRows);
      float* const to = y + static_cast<std::ptrdiff_t>(tile) * kRows;
      int t = block;
      for (; t + kMost <= last; t += kMost) run(std::integral_constant<int, kMost>(), from, rows, t, to);
      if constexpr (kMost == 8) {
        if (t + 4 <= last) run(std::integral_constant<int, 4>(), from, rows, t, to), t += 4;
      }
      if (t + 2 <= last) run(std::integral_constant<int, 2>(), from, rows, t, to), t += 2;
      if (t < last) run(std::integral_constant<int, 1>(), from, rows, t, to);
    }
  }
}

template <template <int, class> class Products>
void multiply_any_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
  switch (w.packing.bits) {
    case 2:
      return multiply_int8<Products, Bytes<2, false>>(inputs, tokens, w, begin, end, y);
    case 3:
      return multiply_int8<Products, Bytes<3, false>>(inputs, tokens, w, begin, end, y);
    case 4:
      if (w.packing.by_table) return multiply_int8<Products, Bytes<4, true>>(inputs, tokens, w, begin, end, y);
      return multiply_int8<Products, Bytes<4, false>>(inputs, tokens, w, begin, end, y);
    case 5:
      return multiply_int8<Products, Bytes<5, false>>(inputs, tokens, w, begin, end, y);
    case 6:
      return multiply_int8<Products, Bytes<6, false>>(inputs, tokens, w, begin, end, y);
    default:
      return multiply_int8<Products, Bytes<8, false>>(inputs, tokens, w, begin, end, y);
  }
}

void packed_matmul_int8_simd(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
#if HAYLOFT_VNNI
  if (may_use_vnni()) return multiply_any_int8<VnniProducts>(inputs, tokens, w, begin, end, y);
#endif
  multiply_any_int8<Products>(inputs, tokens, w, begin, end, y);
}

// Rounds 16 numbers of x: codes to `whole`, their sum to *total. Returns the scale.
HWY_INLINE float round_half_chunk(const float* x, std::int32_t* whole, std::int32_t* total) {
  constexpr float kLeast = 1e-36f;  // below which 127 / largest has no number
  const F32 d;
  const I32 di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto most = hn::Zero(d), nothing = most;
  for (int i = 0; i < kColumns / 2; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    most = hn::Max(most, hn::Abs(v));
    nothing = hn::MulAdd(v, hn::Zero(d), nothing);  // NaN of what is not finite
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most)), none = hn::GetLane(hn::SumOfLanes(d, nothing));
  const bool finite = none == 0, rounds = finite && largest >= kLeast;
  const auto factor = hn::Set(d, rounds ? 127 / largest : 0.0f);
  auto sum = hn::Zero(di);
  for (int i = 0; i < kColumns / 2; i += lanes) {
    const auto v = finite ? hn::LoadU(d, x + i) : hn::Zero(d);
    const auto code = hn::NearestInt(hn::Mul(v, factor));
    hn::StoreU(code, di, whole + i);
    sum = hn::Add(sum, code);
  }
  *total = hn::GetLane(hn::SumOfLanes(di, sum));
  return !finite ? none : rounds ? largest / 127 : 0;
}

void round_inputs_simd(const float* x, std::size_t chunks, int low_bits, std::int8_t* codes, float* scales,
                       std::int32_t* sums) {
  std::uint8_t columns[kColumns];
  for (int i = 0; i < kColumns; ++i) columns[i] = static_cast<std::uint8_t>(column_of(low_bits, i));
  for (std::size_t c = 0; c < chunks; ++c, x += kColumns, codes += kColumns) {
    HWY_ALIGN std::int32_t whole[kColumns];
    for (int half = 0; half < 2; ++half) *scales++ = round_half_chunk(x + 16 * half, whole + 16 * half, sums++);
    for (int i = 0; i < kColumns; ++i) codes[i] = static_cast<std::int8_t>(whole[columns[i]]);
  }
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(packed_matmul_int8_simd);
HWY_EXPORT(round_inputs_simd);

void round_inputs(const float* x, int tokens, int cols, const Packing& packing, Int8Inputs& inputs) {
  const std::size_t n = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(cols),
                    chunks = n / packed_chunk_columns;
  inputs.codes.resize(n);
  inputs.scales.resize(2 * chunks);
  inputs.sums.resize(2 * chunks);
  HWY_DYNAMIC_DISPATCH(round_inputs_simd)
  (x, chunks, packing.low_bits(), inputs.codes.data(), inputs.scales.data(), inputs.sums.data());
}

void choose_int8_instructions() {
  vnni_known = -1;
}

void packed_matmul_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
  HWY_DYNAMIC_DISPATCH(packed_matmul_int8_simd)(inputs, tokens, w, begin, end, y);
}

}  // namespace hayloft::gpu
#endif
