#include "runtime/checkpoint/gguf/metadata.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime::gguf {
namespace {

const char* name_of(ValueType type) {
  constexpr const char* names[] = {"u8",   "i8",   "u16",   "i16", "u32", "i32", "f32",
                                   "bool", "text", "array", "u64", "i64", "f64"};
  return names[static_cast<std::size_t>(type)];
}

// A value for a message.
struct Describe {
  std::string operator()(std::uint64_t x) const { return fmt::format("{}", x); }
  std::string operator()(std::int64_t x) const { return fmt::format("{}", x); }
  std::string operator()(double x) const { return fmt::format("{}", x); }
  std::string operator()(bool x) const { return x ? "true" : "false"; }
  std::string operator()(std::string_view x) const { return fmt::format("'{}'", printable(x)); }
  std::string operator()(const Array& x) const {
    return fmt::format("a list of {} entries of type {}", x.count, name_of(x.type));
  }
};

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* x = std::get_if<std::int64_t>(&value)) return *x;
  const auto* x = std::get_if<std::uint64_t>(&value);
  if (x && *x <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return static_cast<std::int64_t>(*x);
  }
  return std::nullopt;
}

template <class Element, class Out>
void read_all(std::span<const std::byte> bytes, std::vector<Out>& out) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Element)) {
    Element element;
    std::memcpy(&element, bytes.data() + at, sizeof(Element));
    out.push_back(static_cast<Out>(element));
  }
}

// False for entries that are no numbers.
template <class Out>
bool read_numbers(const Array& array, std::vector<Out>& out) {
  switch (array.type) {
    case ValueType::u8:
    case ValueType::boolean:
      return read_all<std::uint8_t>(array.bytes, out), true;
    case ValueType::i8:
      return read_all<std::int8_t>(array.bytes, out), true;
    case ValueType::u16:
      return read_all<std::uint16_t>(array.bytes, out), true;
    case ValueType::i16:
      return read_all<std::int16_t>(array.bytes, out), true;
    case ValueType::u32:
      return read_all<std::uint32_t>(array.bytes, out), true;
    case ValueType::i32:
      return read_all<std::int32_t>(array.bytes, out), true;
    case ValueType::u64:
      return read_all<std::uint64_t>(array.bytes, out), true;
    case ValueType::i64:
      return read_all<std::int64_t>(array.bytes, out), true;
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<Out>) {
    if (array.type == ValueType::f32) return read_all<float>(array.bytes, out), true;
    if (array.type == ValueType::f64) return read_all<double>(array.bytes, out), true;
  }
  return false;
}

}  // namespace

int bytes_of(ValueType type) {
  constexpr int bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return bytes[static_cast<std::size_t>(type)];
}

const Value* Metadata::find(std::string_view key) const {
  const auto value = values_.find(key);
  return value == values_.end() ? nullptr : &value->second;
}

void Metadata::refuse(std::string_view key, const std::string& expected) const {
  const Value* found = find(key);
  if (!found) fail("{}: the metadata lack {}; it must be {}", file_, printable(key), expected);
  fail("{}: {} is {}; it must be {}", file_, printable(key), std::visit(Describe(), *found), expected);
}

const Value& Metadata::require(std::string_view key) const {
  const Value* found = find(key);
  if (!found) fail("{}: the metadata lack {}", file_, printable(key));
  return *found;
}

std::int64_t Metadata::integer(std::string_view key, std::int64_t least, std::int64_t most) const {
  const std::optional<std::int64_t> value = as_integer(require(key));
  if (!value || *value < least || *value > most) refuse(key, fmt::format("an integer from {} to {}", least, most));
  return *value;
}

std::int64_t Metadata::integer_or(std::string_view key, std::int64_t absent, std::int64_t least,
                                  std::int64_t most) const {
  return contains(key) ? integer(key, least, most) : absent;
}

double Metadata::positive(std::string_view key) const {
  const Value& value = require(key);
  double number = 0;
  if (const auto* x = std::get_if<double>(&value)) number = *x;
  if (const auto x = as_integer(value)) number = static_cast<double>(*x);
  if (!(number > 0) || !std::isfinite(number)) refuse(key, "a finite number above zero");
  return number;
}

double Metadata::positive_or(std::string_view key, double absent) const {
  return contains(key) ? positive(key) : absent;
}

bool Metadata::boolean_or(std::string_view key, bool absent) const {
  const Value* value = find(key);
  if (!value) return absent;
  const bool* flag = std::get_if<bool>(value);
  if (!flag) refuse(key, "true or false");
  return *flag;
}

std::string_view Metadata::text(std::string_view key) const {
  const auto* value = std::get_if<std::string_view>(&require(key));
  if (!value) refuse(key, "a text");
  return *value;
}

std::string_view Metadata::text_or(std::string_view key, std::string_view absent) const {
  return contains(key) ? text(key) : absent;
}

const Array& Metadata::array(std::string_view key, const char* expected) const {
  const Array* found = std::get_if<Array>(&require(key));
  if (!found) refuse(key, expected);
  return *found;
}

std::vector<std::string_view> Metadata::texts(std::string_view key) const {
  const Array& list = array(key, "a list of texts");
  if (list.type != ValueType::text) refuse(key, "a list of texts");
  std::vector<std::string_view> out;
  out.reserve(list.count);
  for (const std::byte* at = list.bytes.data(); out.size() < list.count;) {
    std::uint64_t length;
    std::memcpy(&length, at, sizeof length);
    out.emplace_back(reinterpret_cast<const char*>(at) + sizeof length, length);
    at += sizeof length + length;
  }
  return out;
}

std::vector<std::int64_t> Metadata::integers(std::string_view key) const {
  const Array& list = array(key, "a list of integers");
  std::vector<std::int64_t> out;
  out.reserve(list.count);
  if (!read_numbers(list, out)) refuse(key, "a list of integers");
  return out;
}

std::vector<double> Metadata::numbers(std::string_view key) const {
  const Array& list = array(key, "a list of numbers");
  std::vector<double> out;
  out.reserve(list.count);
  if (!read_numbers(list, out)) refuse(key, "a list of numbers");
  return out;
}

}  // namespace hayloft::runtime::gguf
