#include "examples/hayloft/options/values.h"

#include <limits>

#include "offload/format.h"
#include "offload/list.h"

namespace hayloft::cli {

int read_int(const std::string& option, const std::string& text, int least) {
  const std::int64_t value = named(option, [&] { return parse_count(text); });
  constexpr int most = std::numeric_limits<int>::max();
  if (value < least || value > most) fail("{} {}: must be between {} and {}", option, text, least, most);
  return static_cast<int>(value);
}

std::uint64_t read_bytes(const std::string& option, const std::string& text) {
  return named(option, [&] { return parse_bytes(text); });
}

std::int64_t context_length(const std::string& text) {
  return read_int("--ctx-size", text);
}

std::vector<std::int64_t> context_lengths(const std::string& text) {
  std::vector<std::int64_t> lengths;
  for (const std::string_view item : split_list(text)) lengths.push_back(context_length(std::string(item)));
  return lengths;
}

runtime::ShapeOptions read_shape(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view item : split_list(text)) sizes.push_back(read_int("--shape", std::string(item)));
  if (sizes.size() != 4) fail("--shape {}: is written as layers,heads,kv-heads,head-dim", text);
  runtime::ShapeOptions shape;
  shape.layers = sizes[0];
  shape.heads = sizes[1];
  shape.kv_heads = sizes[2];
  shape.head_dim = sizes[3];
  return shape;
}

offload::ColumnFormat column_format(const std::string& text) {
  using offload::ColumnFormat;
  for (const ColumnFormat format : {ColumnFormat::f16, ColumnFormat::int8, ColumnFormat::int4}) {
    if (text == offload::name(format)) return format;
  }
  fail("--columns {}: must be one of f16, int8, int4", text);
}

}  // namespace hayloft::cli
