#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

// The formats of the key columns (the mirror of K that selection reads), and everything that is known of one without
// looking at its bits. A file for each format, behind offload/store/columns.h, has the bits.
namespace hayloft::offload {

// An integer format holds a level per token, and a key is about level * scale, with one f16 scale per 64 tokens (one in
// all where B < 64); quantise.h defines them.
//   int8  a byte per token, two's complement, -127 to 127
//   int4  half a byte per token, two's complement, -7 to 7: byte i of a column holds token 2i in its low nibble and
//         token 2i + 1 in its high one
// Planes hold a code of four bits per token, its most significant bits first, so that as many planes as are read are a
// coarser code of the same key; planes.h defines it.
//   planes  four bitmaps per column, one behind the other: bit t of byte i of a plane is of token 8 i + t
// Saved contexts hold the value as a number, which therefore never changes (docs/internals/snapshot.md).
enum class ColumnFormat : std::uint8_t { f16, int8, int4, planes };

// One row of the table below.
struct ColumnTraits {
  ColumnFormat format;
  const char* name;  // as --columns, reports and messages have it
  // Layout.
  int bits;           // that a column takes of a token, scales apart
  int planes;         // bitmaps that a column consists of, of which a search may read some; 1: read as a whole
  int group_tokens;   // most consecutive tokens of a column that share numbers, and are written at once
  int group_numbers;  // f16 numbers that they share: a scale, or centre and half-width; 0: none
  int largest_level;  // Q of quantise.h; 0: holds no levels
  bool exact;         // holds the keys themselves, so that an exact search can read it
  // Choices.
  ColumnFormat link;  // has the same way over a device's link: f16, int8 or int4, which are measured
  int remedy_cost;    // of taking it where memory is short, beside runtime/plan/remedy.cpp's; 0: the start of these
                      // steps, -1: neither proposed nor replaced
  // Rates, in GB/s of its search.
  const char* rate;        // field of a machine profile that has it
  const char* rate_label;  // row of `hayloft link`; null: not shown
  double cpu_rate;         // built in, where no machine was measured: runtime/attention/attention_rates.cpp
  double gpu_rate;
};

// In the order of the enumeration.
inline constexpr ColumnTraits column_traits[] = {
    {.format = ColumnFormat::f16,
     .name = "f16",
     .bits = 16,
     .planes = 1,
     .group_tokens = 64,
     .group_numbers = 0,
     .largest_level = 0,
     .exact = true,
     .link = ColumnFormat::f16,
     .remedy_cost = 0,
     .rate = "column_scan_GBps",
     .rate_label = "column scan, r=16",
     .cpu_rate = 16,
     .gpu_rate = 17},
    {.format = ColumnFormat::int8,
     .name = "int8",
     .bits = 8,
     .planes = 1,
     .group_tokens = 64,
     .group_numbers = 1,
     .largest_level = 127,
     .exact = false,
     .link = ColumnFormat::int8,
     .remedy_cost = 4,
     .rate = "int8_scan_GBps",
     .rate_label = "column scan, int8",
     .cpu_rate = 8.6,
     .gpu_rate = 17},
    {.format = ColumnFormat::int4,
     .name = "int4",
     .bits = 4,
     .planes = 1,
     .group_tokens = 64,
     .group_numbers = 1,
     .largest_level = 7,
     .exact = false,
     .link = ColumnFormat::int4,
     .remedy_cost = 8,
     .rate = "int4_scan_GBps",
     .rate_label = "column scan, int4",
     .cpu_rate = 4.6,
     .gpu_rate = 17},
    {.format = ColumnFormat::planes,
     .name = "planes",
     .bits = 4,
     .planes = 4,
     .group_tokens = 256,
     .group_numbers = 2,
     .largest_level = 0,
     .exact = false,
     .link = ColumnFormat::int4,  // whose runs are as short
     .remedy_cost = -1,
     .rate = "planes_scan_GBps",
     .rate_label = nullptr,
     .cpu_rate = 2,
     .gpu_rate = 17},
};

inline constexpr std::size_t column_format_count = std::size(column_traits);  // how many formats there are

// Returns the format's row of the table.
constexpr const ColumnTraits& traits_of(ColumnFormat format) {
  return column_traits[static_cast<std::size_t>(format)];
}

// Returns all of them, in the order of the table.
constexpr std::array<ColumnFormat, column_format_count> all_column_formats() {
  std::array<ColumnFormat, column_format_count> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<ColumnFormat>(i);
  return all;
}

// Returns whether a number read from outside is that of a format: for any other there is no row.
constexpr bool is_column_format(ColumnFormat format) {
  return static_cast<std::size_t>(format) < column_format_count;
}

static_assert(std::all_of(std::begin(column_traits), std::end(column_traits),
                          [](const ColumnTraits& row) { return &row == &traits_of(row.format); }));

inline constexpr int plane_count = traits_of(ColumnFormat::planes).planes;  // of a column of planes

// Returns the name in the table; "unknown" of a number that no format has.
constexpr const char* name(ColumnFormat format) {
  return is_column_format(format) ? traits_of(format).name : "unknown";
}
std::optional<ColumnFormat> column_format(std::string_view name);  // none of any other name
std::string column_format_names();                                 // "f16, int8, int4, planes", for messages

// Bits that a column takes of a token, scales apart.
constexpr int bits_of(ColumnFormat format) {
  return traits_of(format).bits;
}
// Returns whether a search reads some planes of a column rather than the column. Such a store keeps how far each
// component's keys spread, by which planes are chosen.
constexpr bool in_planes(ColumnFormat format) {
  return traits_of(format).planes > 1;
}
// Returns whether the tokens of a group share a scale or a range.
constexpr bool is_scaled(ColumnFormat format) {
  return traits_of(format).group_numbers > 0;
}
// Tokens of a column that share a scale, or of planes a range: a quantisation group.
constexpr int tokens_per_scale(ColumnFormat format, int block_tokens) {
  return std::min(block_tokens, traits_of(format).group_tokens);
}

// Calls visit(std::integral_constant) of that format: what is compiled for each format is chosen by it.
template <class Visit>
void with_column_format(ColumnFormat format, const Visit& visit) {
  const auto among = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (void)((static_cast<std::size_t>(format) == i
                ? (visit(std::integral_constant<ColumnFormat, static_cast<ColumnFormat>(i)>()), true)
                : false) ||
           ...);
  };
  among(std::make_index_sequence<column_format_count>());
}

}  // namespace hayloft::offload
