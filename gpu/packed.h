#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "offload/half.h"

// Weight matrices that stay quantised in device memory. Both backends read this one layout; a loader writes it.
//
// Columns are cut into groups of 16 or 32, of which each row has a scale and, in some packings, a minimum:
//
//   weight = scale * value(code) + minimum
//
// where value(code) is table[code] of 4-bit codes and the signed code itself of 8-bit ones. Rows are cut into tiles of
// 16, the last of them filled up with rows of zeros. A group of a tile is one chunk; chunks follow each other group by
// group, tile by tile. A chunk is, little-endian,
//
//   codes    u32 [group * bits / 32][16 rows]: word w of a row holds the codes of columns w * 32 / bits on, in order,
//            from the lowest bits up
//   scales   f16 [16 rows]
//   minima   f16 [16 rows], where the packing has minima
//
// so that a vector of 16 words is the same columns of 16 rows: on a CPU each lane sums one row, on a GPU each thread,
// and nothing is summed across lanes. Bytes per weight: bits / 8 + 2 / group, and again 2 / group for minima.
namespace hayloft::gpu {

// Rows of a tile.
inline constexpr int packed_tile_rows = 16;

// How the codes of a packed matrix are laid out and what they stand for.
struct Packing {
  std::uint8_t bits = 0;   // 4 or 8; 0: not packed
  std::uint8_t group = 0;  // columns, 16 or 32
  bool minimum = false;
  std::array<std::int8_t, 16> table = {};  // of 4-bit codes

  int words() const { return group * bits / 32; }  // of a row in a chunk
  std::size_t chunk_bytes() const {
    return static_cast<std::size_t>(packed_tile_rows) * (4u * static_cast<unsigned>(words()) + (minimum ? 4u : 2u));
  }
  // Of a matrix; cols is a multiple of `group`.
  std::uint64_t matrix_bytes(std::int64_t rows, std::int64_t cols) const {
    const auto tiles = static_cast<std::uint64_t>((rows + packed_tile_rows - 1) / packed_tile_rows);
    return tiles * tile_bytes(cols);
  }
  std::uint64_t tile_bytes(std::int64_t cols) const { return static_cast<std::uint64_t>(cols / group) * chunk_bytes(); }
  friend bool operator==(const Packing&, const Packing&) = default;
};

// Codes are their own values: 0 to 15.
inline constexpr std::array<std::int8_t, 16> packed_identity = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

}  // namespace hayloft::gpu
