#pragma once

#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/packed.h"

// Packed weights as threads read them. Sixteen neighbouring threads are the rows of a tile.
namespace hayloft::gpu::cuda {

inline constexpr int kTileRows = packed_tile_rows;
inline constexpr int kChunkColumns = packed_chunk_columns;

// A packed matrix as a kernel takes it.
struct PackedView {
  const unsigned char* data;
  int rows;
  int cols;
  std::uint64_t tile_bytes;
  int chunk_bytes;
  int head_bytes;
  int scale_bytes;
  float zero;  // of codes
  bool minimum;
  bool products;
  std::uint64_t table[2];  // the values of codes, a byte each
};

// Codes of kBits bits, looked up in the table or not.
template <int kBits, bool kTable>
struct CodeForm {
  static constexpr int bits = kBits;
  static constexpr bool by_table = kTable;
  static constexpr Packing packing{kBits};
  static constexpr int low_bits = packing.low_bits();
  static constexpr int high_bits = packing.high_bits();
  static constexpr int group = packing.group();
  static constexpr int groups = packing.groups();
};

// The place of a chunk and of its head.
struct PackedChunk {
  const unsigned char* codes;
  const unsigned char* head;
};
__device__ inline PackedChunk chunk_of(const PackedView& w, int tile, int chunk) {
  constexpr int per_head = packed_head_columns / kChunkColumns;
  const unsigned char* const from = w.data + static_cast<std::uint64_t>(tile) * w.tile_bytes;
  const int heads = w.products ? chunk / per_head : 0;  // before this one's
  const unsigned char* const chunks = from + static_cast<std::int64_t>(chunk) * w.chunk_bytes;
  const unsigned char* const head = from + static_cast<std::int64_t>(heads) * (w.head_bytes + per_head * w.chunk_bytes);
  return {chunks + (w.products ? static_cast<std::int64_t>(heads + 1) * w.head_bytes : 0), head};
}

__device__ inline float half_at(const unsigned char* address) {
  return widen(*reinterpret_cast<const f16*>(address));
}

// Holds what the scale, or the minimum, of a group of a row is made of.
struct PackedFactors {
  float factor;
  float integer;  // 1 where scales are no products
};
__device__ inline float product_of(PackedFactors factors) {
  return factors.factor * factors.integer;
}
template <class Form>
__device__ inline PackedFactors scale_factors(const PackedView& w, PackedChunk chunk, int g, int lane) {
  const unsigned char* const scales = chunk.codes + 64 * Form::bits;
  const int at = g * kTileRows + lane;
  if (!w.products) return {half_at(scales + 2 * at), 1};
  return {half_at(chunk.head + 2 * lane), static_cast<float>(static_cast<signed char>(scales[at]))};
}
template <class Form>
__device__ inline PackedFactors minimum_factors(const PackedView& w, PackedChunk chunk, int g, int lane) {
  if (!w.minimum) return {0, 0};
  const unsigned char* const minima = chunk.codes + 64 * Form::bits + w.scale_bytes;
  const int at = g * kTileRows + lane;
  if (!w.products) return {half_at(minima + 2 * at), 1};
  return {half_at(chunk.head + 2 * (kTileRows + lane)), static_cast<float>(static_cast<signed char>(minima[at]))};
}

// The scale, or the minimum, of group g of a row.
template <class Form>
__device__ inline float scale_of(const PackedView& w, PackedChunk chunk, int g, int lane) {
  return product_of(scale_factors<Form>(w, chunk, g, lane));
}
template <class Form>
__device__ inline float minimum_of(const PackedView& w, PackedChunk chunk, int g, int lane) {
  return product_of(minimum_factors<Form>(w, chunk, g, lane));
}

// The words of a row's codes in one chunk.
template <class Form>
struct CodeWords {
  unsigned word[Form::bits];

  CodeWords() = default;
  __device__ CodeWords(const unsigned char* codes, int lane) {
    for (int i = 0; i < Form::bits; ++i) word[i] = load4_once(codes + 4 * (i * kTileRows + lane));
  }

  // value(code) of column 0 to 31; table: f32 [16], where it is used. With a column that is known when the
  // code is compiled these are two or three instructions.
  __device__ float value(int column, float zero, const float* table) const {
    constexpr int low = Form::low_bits, high = Form::high_bits;
    unsigned code = word[column * low / 32] >> (column * low % 32) & ((1u << low) - 1);
    if constexpr (high > 0) {
      code |= (word[low + column * high / 32] >> (column * high % 32) & ((1u << high) - 1)) << low;
    }
    if constexpr (Form::by_table) return table[code];
    // As the mantissa of a number from 2^23 on, a code is that number's whole part.
    return float_of(code | 0x4b000000u) - (8388608.0f + zero);
  }
};

}  // namespace hayloft::gpu::cuda
