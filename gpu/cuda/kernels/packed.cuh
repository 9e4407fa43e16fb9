#pragma once

#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/packed.h"

// Packed weights as threads read them. Sixteen neighbouring threads are the rows of a tile.
namespace hayloft::gpu::cuda {

inline constexpr int kTileRows = packed_tile_rows;
inline constexpr int kChunkColumns = packed_chunk_columns;
inline constexpr int kChunksOfHead = packed_head_columns / kChunkColumns;

// A packed matrix as a kernel takes it, besides what its form says.
struct PackedView {
  const unsigned char* data;
  int rows;
  int cols;
  std::uint64_t tile_bytes;
  int zero;                // of codes
  std::uint64_t table[2];  // the values of codes, a byte each
};

// Returns how many quads (CodeWords) a word of codes has.
constexpr int quads_of_word(const Packing& packing) {
  return packing.by_table ? 1 : 8 / packing.low_bits();
}
// Returns the column of a chunk whose code is byte j of a quad; 1 << shift quads are a word.
__host__ __device__ constexpr int column_of_quad(int quad, int j, int shift) {
  return (quad >> shift << (shift + 2)) + (quad & ((1 << shift) - 1)) + (j << shift);
}

inline constexpr int kMostProducts = 24;  // in one launch: gates and what they gate of a dozen experts

// Holds matrices of the same packing and columns whose blocks are numbered through: `end`, of a One, is the number
// behind its own.
template <class One>
struct ProductsOfLaunch {
  PackedView common;  // of their data and rows, the first one's
  One of[kMostProducts];

  // Returns whose a block is, which becomes its number among that one's.
  __device__ int owner_of(int& block) const {
    int product = 0;
    while (block >= of[product].end) ++product;
    if (product > 0) block -= of[product - 1].end;
    return product;
  }
};

// Says of a packing what is known when a kernel is compiled: codes have kBits bits and are looked up in the table or
// not, scales are products of two factors or not, and there are minima or not.
template <int kBits, bool kTable, bool kProducts, bool kMinimum>
struct CodeForm {
  static constexpr int bits = kBits;
  static constexpr bool by_table = kTable;
  static constexpr bool products = kProducts;
  static constexpr bool minimum = kMinimum;
  static constexpr Packing packing{kBits, 0, kMinimum, kProducts, kTable};
  static constexpr int low_bits = packing.low_bits();
  static constexpr int high_bits = packing.high_bits();
  static constexpr int group = packing.group();
  static constexpr int groups = packing.groups();
  static constexpr int chunk_bytes = static_cast<int>(packing.chunk_bytes());
  static constexpr int head_bytes = static_cast<int>(packing.head_bytes());
};

// The places of a row's parts of a chunk: its first word of codes, first scale, and factor in the head before.
struct PackedChunk {
  const unsigned char* words;
  const unsigned char* scales;
  const unsigned char* head;

  // The place of what lies so many bytes behind: of whole chunks, and of whole heads where there are any.
  __device__ PackedChunk behind(int bytes) const { return {words + bytes, scales + bytes, head + bytes}; }
  // The same of a row of the tile that is so many rows below.
  template <class Form>
  __device__ PackedChunk rows_below(int rows) const {
    return {words + 4 * rows, scales + (Form::products ? 1 : 2) * rows, head + 2 * rows};
  }
};
template <class Form>
__device__ inline PackedChunk chunk_of(const PackedView& w, int tile, int chunk, int lane) {
  const int heads = Form::products ? chunk / kChunksOfHead : 0;  // before this one's
  const unsigned char* const head =
      w.data + static_cast<std::uint64_t>(tile) * w.tile_bytes +
      static_cast<std::int64_t>(heads) * (Form::head_bytes + kChunksOfHead * Form::chunk_bytes);
  const unsigned char* const codes =
      head + Form::head_bytes + (chunk - heads * kChunksOfHead) * static_cast<std::int64_t>(Form::chunk_bytes);
  return {codes + 4 * lane, codes + 64 * Form::bits + (Form::products ? 1 : 2) * lane, head + 2 * lane};
}

// Holds what the scale, or the minimum, of a group of a row is made of, as it lies in memory.
struct PackedFactors {
  f16 factor;
  signed char integer;  // 1 where scales are no products

  __device__ float product() const { return widen(factor) * static_cast<float>(integer); }
};
template <class Form>
__device__ inline PackedFactors factors_at(PackedChunk chunk, int kind, int g) {
  const int at = (kind * Form::groups + g) * kTileRows;
  if constexpr (!Form::products) return {*reinterpret_cast<const f16*>(chunk.scales + 2 * at), 1};
  return {*reinterpret_cast<const f16*>(chunk.head + 2 * kind * kTileRows), static_cast<signed char>(chunk.scales[at])};
}
template <class Form>
__device__ inline PackedFactors scale_factors(PackedChunk chunk, int g) {
  return factors_at<Form>(chunk, 0, g);
}
template <class Form>
__device__ inline PackedFactors minimum_factors(PackedChunk chunk, int g) {
  if constexpr (Form::minimum) return factors_at<Form>(chunk, 1, g);
  return {};
}

// The words of a row's codes in one chunk.
template <class Form>
struct CodeWords {
  unsigned word[Form::bits];

  CodeWords() = default;
  __device__ explicit CodeWords(PackedChunk chunk) {
    for (int i = 0; i < Form::bits; ++i) word[i] = load4_once(chunk.words + 4 * i * kTileRows);
  }

  // value(code) of column 0 to 31; table: f32 [16], where it is used. With a column that is known when the
  // code is compiled these are two or three instructions.
  __device__ float value(int column, int zero, const float* table) const {
    constexpr int low = Form::low_bits, high = Form::high_bits;
    unsigned code = word[column * low / 32] >> (column * low % 32) & ((1u << low) - 1);
    if constexpr (high > 0) {
      code |= (word[low + column * high / 32] >> (column * high % 32) & ((1u << high) - 1)) << low;
    }
    if constexpr (Form::by_table) return table[code];
    // As the mantissa of a number from 2^23 on, a code is that number's whole part.
    return float_of(code | 0x4b000000u) - (8388608.0f + static_cast<float>(zero));
  }

  // Four codes at few instructions, as the bytes of a word: of a table their values. They are those of columns as far
  // apart as bytes of the lowest bits lie; eight of such quads are a chunk.
  static constexpr int quads_of_word = cuda::quads_of_word(Form::packing);
  __device__ static int column_of(int quad, int j) { return column_of_quad(quad, j, quads_of_word / 2); }
  __device__ unsigned quad(int index, const PackedView& w) const {
    constexpr int low = Form::low_bits, high = Form::high_bits;
    if constexpr (Form::by_table) return quad_of(word[index / 2] >> (index % 2 * 16), 0, w);
    const unsigned codes = word[index / quads_of_word] >> (low * (index % quads_of_word));
    if constexpr (high == 0) return quad_of(codes, 0, w);
    const int bit = column_of(index, 0) * high;
    return quad_of(codes, word[low + bit / 32] >> (bit % 32), w);
  }
  // Returns the quad whose first code has its lowest bits, and the bits above them, at the end of these words.
  __device__ static unsigned quad_of(unsigned codes, unsigned above, const PackedView& w) {
    if constexpr (Form::by_table) return looked_up(codes, w);
    codes &= 0x01010101u * ((1u << Form::low_bits) - 1);
    if constexpr (Form::high_bits == 0) return codes;
    return codes | spread(above) << Form::low_bits;  // each code's `high_bits * quads_of_word` behind another's
  }

 private:
  // Returns the upper bits of four codes as bytes.
  __device__ static unsigned spread(unsigned bits) {
    if constexpr (Form::high_bits * quads_of_word == 2) return (bits & 0x55u) * 0x41041u & 0x01010101u;
    constexpr unsigned one = (1u << Form::high_bits) - 1;
    const unsigned apart = bits & (0x1111u * one);
    const unsigned pairs = (apart | apart << 8) & (0x00110011u * one);
    return (pairs | pairs << 4) & (0x01010101u * one);
  }
  // Returns the table's values of the four codes in the lower half of a word.
  __device__ static unsigned looked_up(unsigned codes, const PackedView& w) {
    const unsigned in_eight = codes & 0x7777u;
    const unsigned lower =
        pick_bytes(static_cast<unsigned>(w.table[0]), static_cast<unsigned>(w.table[0] >> 32), in_eight);
    const unsigned upper =
        pick_bytes(static_cast<unsigned>(w.table[1]), static_cast<unsigned>(w.table[1] >> 32), in_eight);
    return pick_bytes(lower, upper, (codes >> 1 & 0x4444u) | 0x3210u);
  }
};

}  // namespace hayloft::gpu::cuda
