#include "runtime/checkpoint/gguf/blocks.h"

#include <bit>

#include "offload/half.h"

namespace hayloft::runtime::gguf {
namespace {

static_assert(sizeof(Q4_0) == 18 && sizeof(Q4_1) == 20 && sizeof(Q5_0) == 22 && sizeof(Q5_1) == 24);
static_assert(sizeof(Q8_0) == 34 && sizeof(Q2_K) == 84 && sizeof(Q3_K) == 110 && sizeof(Q4_K) == 144);
static_assert(sizeof(Q5_K) == 176 && sizeof(Q6_K) == 210 && sizeof(Iq4Nl) == 18 && sizeof(Iq4Xs) == 136);
static_assert(sizeof(Mxfp4) == 17);

std::uint16_t two_bytes(const std::uint8_t (&bytes)[2]) {
  return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
}
float half(const std::uint8_t (&bytes)[2]) {
  return to_float(f16{two_bytes(bytes)});
}

// Scales that are products: the factor, and then the integer of each group.
void put_factor(const std::uint8_t (&d)[2], Groups& groups) {
  groups.scale_factor = f16{two_bytes(d)};
}
void put_scale(int group, int integer, Groups& groups) {
  groups.scale_integer[group] = static_cast<std::int8_t>(integer);
  groups.scale[group] = to_float(groups.scale_factor) * static_cast<float>(integer);
}
// And minima, whose factor the file has with the other sign.
void put_minimum_factor(const std::uint8_t (&dmin)[2], Groups& groups) {
  groups.minimum_factor = f16{static_cast<std::uint16_t>(two_bytes(dmin) ^ 0x8000u)};
}
void put_minimum(int group, int integer, Groups& groups) {
  groups.minimum_integer[group] = static_cast<std::int8_t>(integer);
  groups.minimum[group] = to_float(groups.minimum_factor) * static_cast<float>(integer);
}
std::int8_t code(int value) {
  return static_cast<std::int8_t>(value);
}

// Blocks of 32 keep elements 0 to 15 in the low half of 16 bytes and 16 to 31 in the high one. next(element, nibble).
template <class Next>
void each_nibble(const std::uint8_t (&bytes)[16], const Next& next) {
  for (int i = 0; i < 16; ++i) {
    next(i, bytes[i] & 15);
    next(i + 16, bytes[i] >> 4);
  }
}

// Blocks of 256 with 4 bits in 128 bytes: of each run of 32 bytes the low halves are 32 elements, the high ones the
// next.
int nibble(const std::uint8_t (&bytes)[128], int element) {
  const int byte = bytes[element / 64 * 32 + element % 32];
  return element / 32 % 2 ? byte >> 4 : byte & 15;
}
// With 2 bits in 64 bytes: of each run of 32 bytes four times 32 elements, from the lowest bits up.
int two_bits(const std::uint8_t (&bytes)[64], int element) {
  return bytes[element / 128 * 32 + element % 32] >> (element / 32 % 4 * 2) & 3;
}
// With 1 bit in 32 bytes: bit i of each byte for the elements from 32 i on.
int one_bit(const std::uint8_t (&bytes)[32], int element) {
  return bytes[element % 32] >> (element / 32) & 1;
}

// Q4_K and Q5_K: eight scales and eight minima of 6 bits in 12 bytes. The first four lie whole in bytes 0 to 3 and 4 to
// 7, whose upper two bits are those of the last four, which have their lower four bits in bytes 8 to 11.
void unpack_scales(const std::uint8_t (&bytes)[12], Groups& groups) {
  for (int i = 0; i < 4; ++i) {
    const int scale[2] = {bytes[i] & 63, (bytes[i + 8] & 15) | (bytes[i] >> 2 & 48)};
    const int minimum[2] = {bytes[i + 4] & 63, bytes[i + 8] >> 4 | (bytes[i + 4] >> 2 & 48)};
    for (int upper = 0; upper < 2; ++upper) {
      put_scale(i + 4 * upper, scale[upper], groups);
      put_minimum(i + 4 * upper, minimum[upper], groups);
    }
  }
}

}  // namespace

void unpack(const Q4_0& block, Groups& groups) {
  groups.scale[0] = half(block.d);
  each_nibble(block.low_high, [&](int i, int q) { groups.code[i] = code(q - 8); });
}

void unpack(const Q4_1& block, Groups& groups) {
  groups.scale[0] = half(block.d);
  groups.minimum[0] = half(block.m);
  each_nibble(block.low_high, [&](int i, int q) { groups.code[i] = code(q); });
}

void unpack(const Q5_0& block, Groups& groups) {
  groups.scale[0] = half(block.d);
  each_nibble(block.low_high,
              [&](int i, int q) { groups.code[i] = code((q | (block.fifth_bits[i / 8] >> (i % 8) & 1) << 4) - 16); });
}

void unpack(const Q5_1& block, Groups& groups) {
  groups.scale[0] = half(block.d);
  groups.minimum[0] = half(block.m);
  each_nibble(block.low_high,
              [&](int i, int q) { groups.code[i] = code(q | (block.fifth_bits[i / 8] >> (i % 8) & 1) << 4); });
}

void unpack(const Q8_0& block, Groups& groups) {
  groups.scale[0] = half(block.d);
  for (int i = 0; i < 32; ++i) groups.code[i] = static_cast<std::int8_t>(block.codes[i]);
}

void unpack(const Q2_K& block, Groups& groups) {
  put_factor(block.d, groups);
  put_minimum_factor(block.dmin, groups);
  for (int group = 0; group < 16; ++group) {
    put_scale(group, block.scales[group] & 15, groups);
    put_minimum(group, block.scales[group] >> 4, groups);
  }
  for (int i = 0; i < 256; ++i) groups.code[i] = code(two_bits(block.codes, i));
}

// Sixteen scales of 6 bits in 12 bytes: four low bits in the halves of the first eight, two high ones in the last four.
void unpack(const Q3_K& block, Groups& groups) {
  put_factor(block.d, groups);
  for (int group = 0; group < 16; ++group) {
    const int low = group < 8 ? block.scales[group] & 15 : block.scales[group - 8] >> 4;
    const int high = block.scales[8 + group % 4] >> (group / 4 * 2) & 3;
    put_scale(group, (low | high << 4) - 32, groups);
  }
  for (int i = 0; i < 256; ++i) {
    groups.code[i] = code(two_bits(block.codes, i) - (one_bit(block.third_bits, i) ? 0 : 4));
  }
}

void unpack(const Q4_K& block, Groups& groups) {
  put_factor(block.d, groups);
  put_minimum_factor(block.dmin, groups);
  unpack_scales(block.scales, groups);
  for (int i = 0; i < 256; ++i) groups.code[i] = code(nibble(block.codes, i));
}

void unpack(const Q5_K& block, Groups& groups) {
  put_factor(block.d, groups);
  put_minimum_factor(block.dmin, groups);
  unpack_scales(block.scales, groups);
  for (int i = 0; i < 256; ++i) groups.code[i] = code(nibble(block.codes, i) | one_bit(block.fifth_bits, i) << 4);
}

// The lower four bits go by runs of 64 bytes: 64 elements in the low halves, the next 64 in the high ones.
void unpack(const Q6_K& block, Groups& groups) {
  put_factor(block.d, groups);
  for (int group = 0; group < 16; ++group) put_scale(group, static_cast<std::int8_t>(block.scales[group]), groups);
  for (int i = 0; i < 256; ++i) {
    const int byte = block.low[i / 128 * 64 + i % 64];
    const int low = i / 64 % 2 ? byte >> 4 : byte & 15;
    groups.code[i] = code((low | two_bits(block.high, i) << 4) - 32);
  }
}

void unpack(const Iq4Nl& block, Groups& groups) {
  groups.scale[0] = half(block.d);
  each_nibble(block.low_high, [&](int i, int q) { groups.code[i] = iq4_table[q]; });
}

void unpack(const Iq4Xs& block, Groups& groups) {
  put_factor(block.d, groups);
  const int high = two_bytes(block.scales_high);
  for (int group = 0; group < 8; ++group) {
    const int low = block.scales_low[group / 2] >> (group % 2 * 4) & 15;
    put_scale(group, (low | (high >> (2 * group) & 3) << 4) - 32, groups);
  }
  for (int i = 0; i < 256; ++i) {
    const int byte = block.codes[i / 32 * 16 + i % 16];
    groups.code[i] = iq4_table[i % 32 < 16 ? byte & 15 : byte >> 4];
  }
}

// The scale is half of 2^(exponent - 127), because the table has the fp4 values times two.
void unpack(const Mxfp4& block, Groups& groups) {
  const std::uint32_t e = block.exponent;
  groups.scale[0] = std::bit_cast<float>(e < 2 ? std::uint32_t{0x00200000} << e : (e - 1) << 23);
  each_nibble(block.low_high, [&](int i, int q) { groups.code[i] = mxfp4_table[q]; });
}

}  // namespace hayloft::runtime::gguf
