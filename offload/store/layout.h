#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "offload/half.h"
#include "offload/store/column_formats.h"

namespace hayloft::offload {

// The format of the rows, which are what is attended. An integer format holds a level per element, in
// levels of 8 or 4 bits, scales, and of the keys a range per component; rows.h defines it.
enum class RowFormat : std::uint8_t { f16, int8, int4 };

const char* name(RowFormat format);                          // "f16", "int8", "int4"
std::optional<RowFormat> row_format(std::string_view name);  // none of any other name
std::string row_format_names();                              // "f16, int8, int4", for messages

// Bits that a row takes of an element, scales apart.
constexpr int bits_of(RowFormat format) {
  return format == RowFormat::f16 ? 16 : format == RowFormat::int8 ? 8 : 4;
}
// Consecutive elements of K or V in an integer row that share a scale.
constexpr int elements_per_scale(RowFormat format) {
  return format == RowFormat::int8 ? 64 : 32;
}
// Consecutive tokens of integer rows that share the ranges of their keys' components.
constexpr int tokens_per_range(int block_tokens) {
  return std::min(block_tokens, 1024);
}

// Says how many components a head has at most: buffers on the stack are made for so many.
inline constexpr int most_head_dim = 512;

// The shape that all blocks of a store share.
struct StoreShape {
  int layers = 0;           // global layers only; sliding-window layers never reach the store
  int kv_heads = 0;         // Hkv
  int head_dim = 0;         // d, a multiple of 8 up to most_head_dim
  int block_tokens = 4096;  // B, a power of two, 16 to 2^20
  ColumnFormat columns = ColumnFormat::f16;
  RowFormat rows = RowFormat::f16;

  friend bool operator==(const StoreShape&, const StoreShape&) = default;
};

// Says where things lie in one block. A block holds B tokens of one layer, head after head; per head:
//   rows       f16 [B][2 d]   token-major, K row then V row; or [B] of row_bytes each, in an integer format
//   columns    [d][B]         component-major, in the column format
//   scales     f16 [d][max(1, B / 64)]   integer formats only; scale i is that of tokens [64 i, 64 i + 64)
//              f16 [d][max(1, B / 256)][2]   planes: centre and half-width of the range of tokens [256 i, 256 i + 256)
//   ranges     f16 [max(1, B / 1024)][d][2]   integer rows only: centre and width of each key component in the tokens
//              [1024 i, 1024 i + 1024)
//   value_sum  f32 [d]        sum of V over the block's tokens
// All offsets are in bytes; each part starts at a multiple of 64. A block is the unit of allocation, sharing and
// checksums.
struct BlockLayout {
  static constexpr int scale_tokens = 64;

  BlockLayout() = default;
  explicit BlockLayout(const StoreShape& shape);  // throws Error on a shape out of range

  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 0;
  ColumnFormat columns = ColumnFormat::f16;
  RowFormat row_format = RowFormat::f16;

  std::uint64_t row_bytes = 0;     // one token's [K | V]: 4 d in f16; a multiple of 8
  std::uint64_t column_bytes = 0;  // one component over B tokens
  std::uint64_t plane_bytes = 0;   // one plane of a component; 0 but for planes
  std::uint64_t scale_bytes = 0;   // the scales of one component, 0 for f16

  std::uint64_t columns_offset = 0;
  std::uint64_t scales_offset = 0;
  std::uint64_t ranges_offset = 0;
  std::uint64_t value_sum_offset = 0;
  std::uint64_t head_bytes = 0;   // stride from head to head
  std::uint64_t block_bytes = 0;  // kv_heads * head_bytes

  // Returns where the rows of a head begin; f16 [B][2 d] where they are f16.
  const std::byte* row_data(const std::byte* block, int head) const {
    return block + static_cast<std::uint64_t>(head) * head_bytes;
  }
  const std::byte* column(const std::byte* block, int head, int component) const {
    return block + static_cast<std::uint64_t>(head) * head_bytes + columns_offset +
           static_cast<std::uint64_t>(component) * column_bytes;
  }
  const f16* scales(const std::byte* block, int head, int component) const {
    return reinterpret_cast<const f16*>(block + static_cast<std::uint64_t>(head) * head_bytes + scales_offset +
                                        static_cast<std::uint64_t>(component) * scale_bytes);
  }
  const float* value_sum(const std::byte* block, int head) const {
    return reinterpret_cast<const float*>(block + static_cast<std::uint64_t>(head) * head_bytes + value_sum_offset);
  }
};

}  // namespace hayloft::offload
