#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "offload/half.h"
#include "offload/store/layout.h"

// Writes and reads the keys of each column format: the formats' files behind one table.
namespace hayloft::offload {

// Writes keys as a format has them, and reads one back.
struct ColumnCode {
  // Writes a quantisation group of one head's columns, tokens [first, first + tokens) of its block: `rows` is f16
  // [tokens][2 d] from the group's first token on, `stride` elements from token to token, of which K is read.
  void (*fill)(const BlockLayout& layout, std::byte* head, const f16* rows, std::int64_t stride, int first, int tokens);
  // Returns the key that token t of a component of a block stands for. A definition, not a fast way to read many.
  float (*key)(const BlockLayout& layout, const std::byte* block, int head, int component, int t);
};

extern const ColumnCode f16_columns;      // columns_f16.cpp
extern const ColumnCode integer_columns;  // quantise.cpp
extern const ColumnCode plane_columns;    // planes.cpp

// Returns that of a format.
inline const ColumnCode& column_code(ColumnFormat format) {
  static constexpr const ColumnCode* codes[] = {&f16_columns, &integer_columns, &integer_columns, &plane_columns};
  static_assert(std::size(codes) == column_format_count);
  return *codes[static_cast<std::size_t>(format)];
}

// Returns the key that token t of a component of a block stands for, in the format of the block's columns.
inline float column_key(const BlockLayout& layout, const std::byte* block, int head, int component, int t) {
  return column_code(layout.columns).key(layout, block, head, component, t);
}

}  // namespace hayloft::offload
