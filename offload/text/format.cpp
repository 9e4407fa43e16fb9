#include "offload/text/format.h"

#include <charconv>
#include <limits>
#include <optional>

#include "offload/error.h"

namespace hayloft {
namespace {

struct Number {
  std::uint64_t whole = 0;
  double fraction = 0;  // [0, 1)
  std::string unit;     // lower case, no spaces
};

std::optional<Number> split(std::string_view text) {
  Number number;
  const char* const end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number.whole);
  if (error != std::errc{}) return std::nullopt;
  if (rest != end && *rest == '.') {
    const char* digit = rest + 1;
    for (double place = 0.1; digit != end && *digit >= '0' && *digit <= '9'; ++digit, place /= 10) {
      number.fraction += place * (*digit - '0');
    }
    if (digit == rest + 1) return std::nullopt;
    rest = digit;
  }
  if (rest != end && *rest == ' ') ++rest;
  for (; rest != end; ++rest) {
    number.unit.push_back(*rest >= 'A' && *rest <= 'Z' ? static_cast<char>(*rest - 'A' + 'a') : *rest);
  }
  return number;
}

// The power that a prefix letter stands for: k 1, m 2, g 3, t 4; 0 for anything else.
int power_of(char prefix) {
  const std::size_t at = std::string_view("kmgt").find(prefix);
  return at == std::string_view::npos ? 0 : static_cast<int>(at) + 1;
}

std::uint64_t raise(std::uint64_t base, int power) {
  std::uint64_t value = 1;
  for (int i = 0; i < power; ++i) value *= base;
  return value;
}

std::optional<std::uint64_t> unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  const int power = power_of(unit[0]);
  if (power == 0) return std::nullopt;
  const std::string_view rest = unit.substr(1);
  if (rest.empty() || rest == "ib") return raise(1024, power);
  if (rest == "b") return raise(1000, power);
  return std::nullopt;
}

std::optional<std::uint64_t> unit_count(std::string_view unit) {
  if (unit.empty()) return 1;
  if (unit.size() != 1 || power_of(unit[0]) == 0) return std::nullopt;
  return raise(1024, power_of(unit[0]));
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; value >= 1023.95 && unit < 5; ++unit) value /= 1024;  // 1023.95 would be printed as 1024.0
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::uint64_t parse_bytes(std::string_view text) {
  const auto number = split(text);
  const auto unit = number ? unit_bytes(number->unit) : std::nullopt;
  if (!unit) fail("'{}' is not a size in bytes; write it like 4096, 64k, 500MB, 16GiB or 1.5GiB", text);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(number->whole, *unit, &bytes) ||
      __builtin_add_overflow(bytes, static_cast<std::uint64_t>(number->fraction * static_cast<double>(*unit)),
                             &bytes)) {
    fail("'{}' is more bytes than 64 bits can count", text);
  }
  return bytes;
}

std::int64_t parse_count(std::string_view text) {
  const auto number = split(text);
  const auto unit = number && number->fraction == 0 ? unit_count(number->unit) : std::nullopt;
  if (!unit) fail("'{}' is not a whole number; write it like 4096, 64k (65536) or 1M (1048576)", text);
  std::uint64_t count = 0;
  if (__builtin_mul_overflow(number->whole, *unit, &count) ||
      count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail("'{}' is a larger number than 63 bits can count", text);
  }
  return static_cast<std::int64_t>(count);
}

std::string format_count(std::int64_t count) {
  std::string_view prefixes = "kMGT";
  std::string_view unit;
  while (count != 0 && count % 1024 == 0 && !prefixes.empty()) {
    count /= 1024;
    unit = prefixes.substr(0, 1);
    prefixes.remove_prefix(1);
  }
  return fmt::format("{}{}", count, unit);
}

}  // namespace hayloft
