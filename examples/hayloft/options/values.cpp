#include "examples/hayloft/options/values.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "offload/text/format.h"
#include "offload/text/list.h"

namespace hayloft::cli {

int read_int(const std::string& option, const std::string& text, int least, int most) {
  const std::int64_t value = named(option, [&] { return parse_count(text); });
  if (value < least || value > most) fail("{} {}: must be between {} and {}", option, text, least, most);
  return static_cast<int>(value);
}

double read_number(const std::string& option, const std::string& text, double least, double most) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !(value >= least && value <= most)) {
    fail("{} {}: must be a number from {} to {}", option, text.empty() ? "''" : text, least, most);
  }
  return value;
}

namespace {

// The name to use in messages: the long one of "-s,--seed".
std::string long_name(const std::string& names) {
  return names.substr(names.rfind(',') + 1);
}

}  // namespace

CLI::Option* add_number(CLI::App& app, const std::string& names, const std::string& type, double& value, double least,
                        double most, const std::string& help) {
  const auto read = [&value, option = long_name(names), least, most](const std::string& text) {
    value = read_number(option, text, least, most);
  };
  return add_text(app, names, type, read, help)->default_str(fmt::format("{}", value));
}

CLI::Option* add_seed(CLI::App& app, const std::string& names, std::uint64_t& value, const std::string& help) {
  const auto read = [&value, option = long_name(names)](const std::string& text) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) {
      fail("{} {}: must be a whole number from 0 to 18446744073709551615", option, text.empty() ? "''" : text);
    }
  };
  return add_text(app, names, "N", read, help)->default_str(fmt::format("{}", value));
}

std::uint64_t read_bytes(const std::string& option, const std::string& text) {
  return named(option, [&] { return parse_bytes(text); });
}

std::int64_t context_length(const std::string& text) {
  return read_int("--ctx-size", text);
}

std::vector<std::int64_t> context_lengths(const std::string& text) {
  std::vector<std::int64_t> lengths;
  for (const std::string_view item : split_list(text)) {
    const std::int64_t length = context_length(std::string(item));
    if (std::ranges::find(lengths, length) != lengths.end()) fail("--ctx-size {}: {} stands there twice", text, item);
    lengths.push_back(length);
  }
  return lengths;
}

runtime::plan::ShapeOptions read_shape(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view item : split_list(text)) sizes.push_back(read_int("--shape", std::string(item)));
  if (sizes.size() != 4) fail("--shape {}: is written as layers,heads,kv-heads,head-dim", text);
  runtime::plan::ShapeOptions shape;
  shape.layers = sizes[0];
  shape.heads = sizes[1];
  shape.kv_heads = sizes[2];
  shape.head_dim = sizes[3];
  return shape;
}

double read_share(const std::string& option, const std::string& text) {
  const bool percent = !text.empty() && text.back() == '%';
  const char* const end = text.data() + text.size() - (percent ? 1 : 0);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) fail("{} {}: must be a share, as in 1% or 0.01", option, text);
  return percent ? value / 100 : value;
}

offload::ColumnFormat column_format(const std::string& text) {
  if (const auto format = offload::column_format(text)) return *format;
  fail("--columns {}: must be one of {}", text, offload::column_format_names());
}

offload::RowFormat row_format(const std::string& text) {
  if (const auto format = offload::row_format(text)) return *format;
  fail("--rows {}: must be one of {}", text, offload::row_format_names());
}

}  // namespace hayloft::cli
