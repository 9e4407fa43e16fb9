#include "offload/store/layout.h"

#include <algorithm>

#include "offload/error.h"

namespace hayloft::offload {
namespace {

std::uint64_t aligned(std::uint64_t offset) {
  return (offset + 63) / 64 * 64;
}

void check_shape(const StoreShape& shape) {
  const auto in_range = [](const char* what, int value, int low, int high) {
    if (value < low || value > high) fail("store shape: {} is {}, must be {} to {}", what, value, low, high);
  };
  in_range("layers", shape.layers, 0, 1 << 16);  // none: every layer of the model slides
  in_range("kv_heads", shape.kv_heads, 1, 1 << 16);
  in_range("head_dim", shape.head_dim, 8, most_head_dim);
  in_range("block_tokens", shape.block_tokens, 16, 1 << 20);
  if (shape.head_dim % 8 != 0) fail("store shape: head_dim is {}, must be a multiple of 8", shape.head_dim);
  if (!std::has_single_bit(static_cast<unsigned>(shape.block_tokens))) {
    fail("store shape: block_tokens is {}, must be a power of two", shape.block_tokens);
  }
  if (!is_column_format(shape.columns)) {
    fail("store shape: {} is not a column format", static_cast<int>(shape.columns));
  }
  if (shape.rows > RowFormat::int4) fail("store shape: {} is not a row format", static_cast<int>(shape.rows));
}

constexpr RowFormat row_formats[] = {RowFormat::f16, RowFormat::int8, RowFormat::int4};

template <class Formats>
auto named(const Formats& formats, std::string_view text) {
  const auto found = std::find_if(std::begin(formats), std::end(formats), [&](auto f) { return text == name(f); });
  return found == std::end(formats) ? std::nullopt : std::optional(*found);
}

template <class Formats>
std::string names_of(const Formats& formats) {
  std::string names;
  for (const auto format : formats) names += (names.empty() ? "" : ", ") + std::string(name(format));
  return names;
}

// Returns the bytes of an integer row: levels of K and V, then the scales of K and of V, filled up to whole words of 8
// bytes.
std::uint64_t integer_row_bytes(RowFormat format, std::uint64_t d) {
  const auto group = static_cast<std::uint64_t>(elements_per_scale(format));
  const std::uint64_t scales = 2 * ((d + group - 1) / group) * sizeof(f16);
  return (2 * d * static_cast<std::uint64_t>(bits_of(format)) / 8 + scales + 7) / 8 * 8;
}

}  // namespace

const char* name(RowFormat format) {
  return name(format == RowFormat::f16    ? ColumnFormat::f16
              : format == RowFormat::int8 ? ColumnFormat::int8
                                          : ColumnFormat::int4);
}

std::optional<ColumnFormat> column_format(std::string_view text) {
  return named(all_column_formats(), text);
}

std::string column_format_names() {
  return names_of(all_column_formats());
}

std::optional<RowFormat> row_format(std::string_view text) {
  return named(row_formats, text);
}

std::string row_format_names() {
  return names_of(row_formats);
}

BlockLayout::BlockLayout(const StoreShape& shape)
    : kv_heads(shape.kv_heads),
      head_dim(shape.head_dim),
      block_tokens(shape.block_tokens),
      columns(shape.columns),
      row_format(shape.rows) {
  check_shape(shape);
  const auto d = static_cast<std::uint64_t>(head_dim);
  const auto tokens = static_cast<std::uint64_t>(block_tokens);
  row_bytes = row_format == RowFormat::f16 ? 2 * d * sizeof(f16) : integer_row_bytes(row_format, d);
  column_bytes = tokens * static_cast<std::uint64_t>(bits_of(columns)) / 8;
  if (in_planes(columns)) plane_bytes = column_bytes / static_cast<unsigned>(traits_of(columns).planes);
  const std::uint64_t ranges = tokens / static_cast<std::uint64_t>(tokens_per_scale(columns, block_tokens));
  scale_bytes = ranges * static_cast<unsigned>(traits_of(columns).group_numbers) * sizeof(f16);
  columns_offset = aligned(tokens * row_bytes);
  scales_offset = aligned(columns_offset + d * column_bytes);
  ranges_offset = aligned(scales_offset + d * scale_bytes);
  const std::uint64_t key_ranges =
      row_format == RowFormat::f16 ? 0 : tokens / static_cast<std::uint64_t>(tokens_per_range(block_tokens));
  value_sum_offset = aligned(ranges_offset + key_ranges * d * 2 * sizeof(f16));
  head_bytes = aligned(value_sum_offset + d * sizeof(float));
  block_bytes = static_cast<std::uint64_t>(kv_heads) * head_bytes;
}

}  // namespace hayloft::offload
