#include "offload/text/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "offload/text/format.h"

namespace hayloft {
namespace {

struct Unit {
  const char* name;
  double size;
  double up_to;  // of what is counted in it, in the same base
};

// Past a hundred of a unit that has 60 of the one before, the next one says more.
constexpr Unit durations[] = {{"us", 1e-6, 1e-3},    {"ms", 1e-3, 1},           {"s", 1, 120},
                              {"min", 60, 120 * 60}, {"h", 3600, 100 * 3600.0}, {"days", 86400, 1e300}};
constexpr Unit operations_units[] = {{"FLOP", 1, 1e3},      {"kFLOP", 1e3, 1e6},   {"MFLOP", 1e6, 1e9},
                                     {"GFLOP", 1e9, 1e12},  {"TFLOP", 1e12, 1e15}, {"PFLOP", 1e15, 1e18},
                                     {"EFLOP", 1e18, 1e300}};

// Three digits without an exponent: 1.25, 12.5, 125, 1250.
std::string three_digits(double value) {
  std::string text = fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

template <std::size_t N>
std::string in_units(double value, const Unit (&units)[N]) {
  value = std::max(value, 0.0);
  const auto unit =
      std::find_if(std::begin(units), std::end(units) - 1, [&](const Unit& u) { return value < u.up_to * 0.9995; });
  return fmt::format("{} {}", three_digits(value / unit->size), unit->name);
}

}  // namespace

std::string format_duration(double seconds) {
  return in_units(seconds, durations);
}

std::string format_large_bytes(double bytes) {
  if (bytes < 0x1p63) return format_bytes(static_cast<std::uint64_t>(std::max(bytes, 0.0)));
  return fmt::format("{:.1f} EiB", bytes / 0x1p60);
}

std::string format_flops(double operations) {
  return in_units(operations, operations_units);
}

}  // namespace hayloft
