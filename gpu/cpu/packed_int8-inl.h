// Products of bytes: codes of packed weights (gpu/packed.h) with inputs rounded to 8 bits, for the kernels that
// multiply them. Included once per SIMD target.
#if defined(HAYLOFT_GPU_CPU_PACKED_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_PACKED_INT8_INL_H_
#undef HAYLOFT_GPU_CPU_PACKED_INT8_INL_H_
#else
#define HAYLOFT_GPU_CPU_PACKED_INT8_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "gpu/cpu/packed-inl.h"

// Without VNNI bytes are multiplied two at a time into 16 bits, or one by one.
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

// Returns the number that a byte of a packing's codes has more than its weight.
constexpr int zero_of(const Packing& packing) {
  return packing.by_table ? 128 : packing.zero;
}
// Returns whether bytes are up to 255, which products by pairs take as signed ones, 128 less.
constexpr bool are_whole_bytes(int bits, bool by_table) {
  return bits == 8 || by_table;
}

// Codes of kBits bits of Lanes(d) rows, four columns in the bytes of a lane: dword j holds the columns that
// column_of(4 j + i) says. Their bytes are unsigned; a weight is its byte less zero_of().
template <int kBits, bool kTable>
class Bytes {
 public:
  static constexpr Packing form{kBits};
  static constexpr int kLow = form.low_bits(), kHigh = form.high_bits();
  static constexpr int kPerWord = 8 / kLow;  // dwords of a word
  static constexpr bool whole = are_whole_bytes(kBits, kTable);

  explicit Bytes(const Packing& packing) {
    for (std::size_t i = 0; i < sizeof table_; ++i) table_[i] = static_cast<std::uint8_t>(packing.table[i % 16] + 128);
  }

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

  HWY_ALIGN std::uint8_t table_[64];
};

// The column of a chunk whose input meets byte `at` of a chunk's codes.
constexpr int column_of(int low_bits, int at) {
  const int parts = 8 / low_bits, word = at / (4 * parts), part = at / 4 % parts;
  return word * 4 * parts + at % 4 * parts + part;
}

constexpr int kDwords = kColumns / 4;  // that the codes of a token's chunk take

// Calls body(integral_constant<int, run>, first token) for the runs of tokens that are multiplied together, kMost at
// most. Inputs lie in the order of these runs (Int8Inputs).
template <int kMost, class Body>
HWY_INLINE void for_each_int8_run(int begin, int end, const Body& body) {
  int t = begin;
  for (; t + kMost <= end; t += kMost) body(std::integral_constant<int, kMost>(), t);
  if constexpr (kMost == 8) {
    if (t + 4 <= end) body(std::integral_constant<int, 4>(), t), t += 4;
  }
  if (t + 2 <= end) body(std::integral_constant<int, 2>(), t), t += 2;
  if (t < end) body(std::integral_constant<int, 1>(), t);
}

// Adds up the products of Q tokens' inputs with the codes of a group, dword by dword, to `start`, which begin() and
// sum() are both given. inputs: those of a chunk, [Q][kDwords].
template <int Q, class Bytes>
class Products {
 public:
#if HAYLOFT_PAIRS
  // A pair of products is 2 * 127 * 31 at most of five bits, and so on: so many of them fit 16 bits, of sixteen columns
  // with one scale. Where all of these do, sums of 32 bits take no registers until the end.
  static constexpr int kTogether = Bytes::whole ? 1 : Bytes::form.bits == 6 ? 2 : 4;
  static constexpr bool kAllTogether = kTogether == 4;
  HWY_INLINE void begin(int q, std::int32_t start) {
    if constexpr (!kAllTogether) sum_[q] = hn::Set(I32(), start);
  }
  template <int kDword>
  HWY_INLINE void add(U32Vec codes, const std::int32_t* inputs) {
    [[maybe_unused]] I8Vec weights = hn::Zero(I8());
    if constexpr (Bytes::whole) {
      weights = hn::BitCast(I8(), hn::Xor(codes, hn::Set(U32(), 0x80808080u)));
      codes = hn::BitCast(U32(), hn::Abs(weights));
    }
    for (int q = 0; q < Q; ++q) {
      auto x = hn::BitCast(I8(), hn::Set(I32(), inputs[q * kDwords + kDword]));
      if constexpr (Bytes::whole) x = with_sign(weights, x);
      const auto pairs = multiply_pairs(codes, x);
      part_[q] = kDword % kTogether == 0 ? pairs : hn::Add(part_[q], pairs);
      if constexpr (!kAllTogether && (kDword + 1) % kTogether == 0) {
        sum_[q] = hn::Add(sum_[q], sum_pairs(part_[q]));
      }
    }
  }
  HWY_INLINE F32Vec sum(F32 d, int q, std::int32_t start) const {
    if constexpr (kAllTogether) return hn::ConvertTo(d, hn::Add(hn::Set(I32(), start), sum_pairs(part_[q])));
    return hn::ConvertTo(d, sum_[q]);
  }
#else
  HWY_INLINE void begin(int q, std::int32_t start) {
    sum_[q] = hn::Set(I32(), start);
  }
  template <int kDword>
  HWY_INLINE void add(U32Vec codes, const std::int32_t* inputs) {
    for (int q = 0; q < Q; ++q) {
      for (int i = 0; i < 4; ++i) {
        const auto byte = static_cast<std::int8_t>(static_cast<std::uint32_t>(inputs[q * kDwords + kDword]) >> 8 * i);
        const auto code = hn::And(i == 0 ? codes : hn::ShiftRightSame(codes, 8 * i), hn::Set(U32(), 0xffu));
        sum_[q] = hn::Add(sum_[q], hn::Mul(hn::BitCast(I32(), code), hn::Set(I32(), byte)));
      }
    }
  }
  HWY_INLINE F32Vec sum(F32 d, int q, std::int32_t) const {
    return hn::ConvertTo(d, sum_[q]);
  }
#endif
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
  HWY_INLINE void begin(int q, std::int32_t start) { sum_[q] = hn::Set(I32(), start); }
  template <int kDword>
  HWY_INLINE void add(U32Vec codes, const std::int32_t* inputs) {
    for (int q = 0; q < Q; ++q) {
      const auto x = hn::Set(I32(), inputs[q * kDwords + kDword]);
      asm("vpdpbusd %2, %1, %0" : "+v"(sum_[q].raw) : "v"(codes.raw), "v"(x.raw));
    }
  }
  HWY_INLINE F32Vec sum(F32 d, int q, std::int32_t) const { return hn::ConvertTo(d, sum_[q]); }
  static constexpr int most = 8;

 private:
  I32Vec sum_[Q];
};
#endif

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
