#pragma once

#include <cstdint>

#include "offload/half.h"
#include "runtime/checkpoint/gguf/types.h"

// The quantised blocks of GGUF, byte for byte as they lie in a file (ggml-common.h of ggml has the same), and one way
// of reading them all: a block is groups of 16 or 32 elements, each
//
//   element = scale * code + minimum      (the minimum only in types that have one)
//
// with an integer code of at most 8 bits. Scales and minima are f32: products of an f16 factor of the block and a small
// integer of the group in the types that have both.
namespace hayloft::runtime::gguf {

// A block taken apart. code: [elements]; scale, minimum: [elements / group]; minimum is not written by types without.
// The factors of scales and minima are written by types whose `products` is true.
struct Groups {
  std::int8_t code[256];
  float scale[16];
  float minimum[16];
  f16 scale_factor{};
  f16 minimum_factor{};
  std::int8_t scale_integer[16];
  std::int8_t minimum_integer[16];
};

// `bits` hold every code plus `zero`, or the index of a code that comes from a table (iq4_table, mxfp4_table).
struct Q4_0 {
  static constexpr int elements = 32, group = 32, bits = 4, zero = 8;
  static constexpr bool has_minimum = false, products = false;
  std::uint8_t d[2], low_high[16];
};
struct Q4_1 {
  static constexpr int elements = 32, group = 32, bits = 4, zero = 0;
  static constexpr bool has_minimum = true, products = false;
  std::uint8_t d[2], m[2], low_high[16];
};
struct Q5_0 {
  static constexpr int elements = 32, group = 32, bits = 5, zero = 16;
  static constexpr bool has_minimum = false, products = false;
  std::uint8_t d[2], fifth_bits[4], low_high[16];
};
struct Q5_1 {
  static constexpr int elements = 32, group = 32, bits = 5, zero = 0;
  static constexpr bool has_minimum = true, products = false;
  std::uint8_t d[2], m[2], fifth_bits[4], low_high[16];
};
struct Q8_0 {
  static constexpr int elements = 32, group = 32, bits = 8, zero = 128;
  static constexpr bool has_minimum = false, products = false;
  std::uint8_t d[2], codes[32];
};
struct Q2_K {
  static constexpr int elements = 256, group = 16, bits = 2, zero = 0;
  static constexpr bool has_minimum = true, products = true;
  std::uint8_t scales[16], codes[64], d[2], dmin[2];
};
struct Q3_K {
  static constexpr int elements = 256, group = 16, bits = 3, zero = 4;
  static constexpr bool has_minimum = false, products = true;
  std::uint8_t third_bits[32], codes[64], scales[12], d[2];
};
struct Q4_K {
  static constexpr int elements = 256, group = 32, bits = 4, zero = 0;
  static constexpr bool has_minimum = true, products = true;
  std::uint8_t d[2], dmin[2], scales[12], codes[128];
};
struct Q5_K {
  static constexpr int elements = 256, group = 32, bits = 5, zero = 0;
  static constexpr bool has_minimum = true, products = true;
  std::uint8_t d[2], dmin[2], scales[12], fifth_bits[32], codes[128];
};
struct Q6_K {
  static constexpr int elements = 256, group = 16, bits = 6, zero = 32;
  static constexpr bool has_minimum = false, products = true;
  std::uint8_t low[128], high[64], scales[16], d[2];
};
struct Iq4Nl {
  static constexpr int elements = 32, group = 32, bits = 4, zero = 0;
  static constexpr bool has_minimum = false, products = false;
  std::uint8_t d[2], low_high[16];
};
struct Iq4Xs {
  static constexpr int elements = 256, group = 32, bits = 4, zero = 0;
  static constexpr bool has_minimum = false, products = true;
  std::uint8_t d[2], scales_high[2], scales_low[4], codes[128];
};
struct Mxfp4 {
  static constexpr int elements = 32, group = 32, bits = 4, zero = 0;
  static constexpr bool has_minimum = false, products = false;
  std::uint8_t exponent, low_high[16];
};

inline constexpr std::int8_t iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr std::int8_t mxfp4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void unpack(const Q4_0& block, Groups& groups);
void unpack(const Q4_1& block, Groups& groups);
void unpack(const Q5_0& block, Groups& groups);
void unpack(const Q5_1& block, Groups& groups);
void unpack(const Q8_0& block, Groups& groups);
void unpack(const Q2_K& block, Groups& groups);
void unpack(const Q3_K& block, Groups& groups);
void unpack(const Q4_K& block, Groups& groups);
void unpack(const Q5_K& block, Groups& groups);
void unpack(const Q6_K& block, Groups& groups);
void unpack(const Iq4Nl& block, Groups& groups);
void unpack(const Iq4Xs& block, Groups& groups);
void unpack(const Mxfp4& block, Groups& groups);

// body(Block()) with the block of a quantised type; false for types that are plain numbers.
template <class Body>
bool with_block(TensorType type, Body&& body) {
  switch (type) {
    case TensorType::q4_0:
      return body(Q4_0()), true;
    case TensorType::q4_1:
      return body(Q4_1()), true;
    case TensorType::q5_0:
      return body(Q5_0()), true;
    case TensorType::q5_1:
      return body(Q5_1()), true;
    case TensorType::q8_0:
      return body(Q8_0()), true;
    case TensorType::q2_k:
      return body(Q2_K()), true;
    case TensorType::q3_k:
      return body(Q3_K()), true;
    case TensorType::q4_k:
      return body(Q4_K()), true;
    case TensorType::q5_k:
      return body(Q5_K()), true;
    case TensorType::q6_k:
      return body(Q6_K()), true;
    case TensorType::iq4_nl:
      return body(Iq4Nl()), true;
    case TensorType::iq4_xs:
      return body(Iq4Xs()), true;
    case TensorType::mxfp4:
      return body(Mxfp4()), true;
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
      break;
  }
  return false;
}

}  // namespace hayloft::runtime::gguf
