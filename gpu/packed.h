#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "offload/half.h"

// Weight matrices that stay quantised in device memory. Both backends read this one layout; a loader writes it.
//
//   weight = scale * value(code) + minimum
//
// A row has a scale, and in some packings a minimum, for each group of 16 or 32 columns: f16 numbers, or products of an
// f16 factor for 256 columns and an 8-bit integer for the group, as the K types of GGUF have them.
//
// Rows are cut into tiles of 16, the last of them filled up with rows of zeros; columns of a tile into chunks of 32,
// which follow each other, tile by tile. Where scales are products, a head stands before every eight chunks. All is
// little-endian:
//
//   head     f16 [16 rows] factors of the scales; f16 [16 rows] factors of the minima, where there are any
//   chunk    u32 [low_bits][16 rows]   the lowest 2, 4 or 8 bits of codes, of which word w of a row has those of the
//                                      columns 32 / low_bits * w on, in order, from its lowest bits up
//            u32 [high_bits][16 rows]  the 1 or 2 bits above them of codes of 3, 5 and 6 bits, likewise
//            f16 or i8 [32 / group][16 rows] scales; the same again minima, where there are any
//
// so that a vector of 16 words is the same columns of 16 rows: on a CPU each lane sums one row, on a GPU each thread,
// and nothing is summed across lanes.
namespace hayloft::gpu {

inline constexpr int packed_tile_rows = 16;      // rows of a tile
inline constexpr int packed_chunk_columns = 32;  // columns whose codes lie together
inline constexpr int packed_head_columns = 256;  // that one head stands for

// Says how a matrix is packed. Sizes are in bytes; `cols` is a multiple of columns().
struct Packing {
  std::uint8_t bits = 0;  // of a code: 2, 3, 4, 5, 6 or 8; 0: not packed
  std::uint8_t zero = 0;  // value(code) = code - zero ...
  bool minimum : 1 = false;
  bool products : 1 = false;            // what scales and minima are
  bool by_table : 1 = false;            // ... or table[code], of 4-bit codes alone
  std::array<std::int8_t, 16> table{};  // zeros without

  constexpr int group() const { return bits == 4 || bits == 5 || bits == 8 ? 32 : 16; }
  constexpr int groups() const { return packed_chunk_columns / group(); }  // of a chunk
  constexpr int low_bits() const { return bits < 4 ? 2 : bits < 8 ? 4 : 8; }
  constexpr int high_bits() const { return bits - low_bits(); }
  constexpr int columns() const { return products ? packed_head_columns : packed_chunk_columns; }
  constexpr std::size_t code_bytes() const { return std::size_t{packed_tile_rows} * 4 * bits; }  // of a chunk
  constexpr std::size_t scale_bytes() const {  // the scales of a chunk
    return static_cast<std::size_t>(packed_tile_rows * groups() * (products ? 1 : 2));
  }
  constexpr std::size_t chunk_bytes() const { return code_bytes() + scale_bytes() * (minimum ? 2 : 1); }
  constexpr std::size_t head_bytes() const {
    return products ? std::size_t{packed_tile_rows} * 2 * (minimum ? 2 : 1) : 0;
  }
  // From the begin of a tile to the head and to the chunk of a column.
  constexpr std::size_t head_offset(std::int64_t column) const {
    const auto heads = static_cast<std::size_t>(column / packed_head_columns);
    return heads * (head_bytes() + packed_head_columns / packed_chunk_columns * chunk_bytes());
  }
  constexpr std::size_t chunk_offset(std::int64_t column) const {
    const std::size_t chunks = static_cast<std::size_t>(column / packed_chunk_columns) * chunk_bytes();
    return products ? chunks + static_cast<std::size_t>(column / packed_head_columns + 1) * head_bytes() : chunks;
  }
  constexpr std::uint64_t tile_bytes(std::int64_t cols) const {
    return static_cast<std::uint64_t>(cols / packed_chunk_columns) * chunk_bytes() +
           static_cast<std::uint64_t>(cols / packed_head_columns) * head_bytes();
  }
  constexpr std::uint64_t matrix_bytes(std::int64_t rows, std::int64_t cols) const {
    return static_cast<std::uint64_t>((rows + packed_tile_rows - 1) / packed_tile_rows) * tile_bytes(cols);
  }
  constexpr int value(unsigned code) const { return by_table ? table[code] : static_cast<int>(code) - zero; }
  friend bool operator==(const Packing&, const Packing&) = default;
};

// Writes the codes of 32 columns as row `lane` of a chunk.
inline void put_codes(const Packing& packing, const std::uint8_t (&codes)[packed_chunk_columns], int lane,
                      std::byte* chunk) {
  const auto put = [&](int bits, int shift) {
    const int per_word = 32 / bits;
    for (int w = 0; w < bits; ++w, chunk += std::size_t{4} * packed_tile_rows) {
      std::uint32_t word = 0;
      for (int i = 0; i < per_word; ++i) {
        const auto code = static_cast<std::uint32_t>(codes[w * per_word + i] >> shift);
        word |= (code & ((1u << bits) - 1)) << (i * bits);
      }
      std::memcpy(chunk + static_cast<std::ptrdiff_t>(4) * lane, &word, sizeof word);
    }
  };
  put(packing.low_bits(), 0);
  if (packing.high_bits() > 0) put(packing.high_bits(), packing.low_bits());
}

// The code of column 0 to 31 of row `lane` of a chunk.
inline unsigned code_at(const Packing& packing, const std::byte* chunk, int lane, int column) {
  const auto get = [&](int first_word, int bits) {
    const int per_word = 32 / bits;
    std::uint32_t word;
    std::memcpy(&word, chunk + 4 * ((first_word + column / per_word) * packed_tile_rows + lane), sizeof word);
    return word >> (column % per_word * bits) & ((1u << bits) - 1);
  };
  const unsigned low = get(0, packing.low_bits());
  if (packing.high_bits() == 0) return low;
  return low | get(packing.low_bits(), packing.high_bits()) << packing.low_bits();
}

// One row of one group of a tile.
struct PackedGroup {
  float scale = 0;
  float minimum = 0;
};
// Returns the group that holds `column` in row `lane` of a tile.
inline PackedGroup group_at(const Packing& packing, const std::byte* tile, int lane, std::int64_t column) {
  const auto half = [](const std::byte* at) {
    f16 x;
    std::memcpy(&x, at, sizeof x);
    return to_float(x);
  };
  const int index = static_cast<int>(column % packed_chunk_columns) / packing.group() * packed_tile_rows + lane;
  const std::byte* const scales = tile + packing.chunk_offset(column) + packing.code_bytes();
  const std::byte* const minima = scales + packing.scale_bytes();
  if (!packing.products) return {half(scales + 2 * index), packing.minimum ? half(minima + 2 * index) : 0};
  const auto product = [&](const std::byte* integers, int factors) {
    const std::byte* const factor = tile + packing.head_offset(column) + 2 * (factors + lane);
    return half(factor) * static_cast<float>(static_cast<std::int8_t>(integers[index]));
  };
  return {product(scales, 0), packing.minimum ? product(minima, packed_tile_rows) : 0};
}

}  // namespace hayloft::gpu
