#include "runtime/grammar/schema_numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hayloft::runtime::grammar {
namespace {

constexpr std::int64_t kMostInteger = 9'999'999'999'999'999;  // of 16 digits

std::string either(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& each : all) {
    if (!each.empty()) text += (text.empty() ? "" : " | ") + each;
  }
  return text.empty() ? text : "(" + text + ")";
}

std::string digits(std::size_t count) {
  return count == 0 ? std::string() : fmt::format(" [0-9]{{{}}}", count);
}

// Digits from `first` to `last`, which are as long, both included.
std::string digits_between(const std::string& first, const std::string& last) {
  if (first.empty()) return "\"\"";
  if (first == last) return fmt::format("\"{}\"", first);
  const std::string rest_first = first.substr(1), rest_last = last.substr(1);
  const std::string zeros(rest_first.size(), '0'), nines(rest_first.size(), '9');
  if (first[0] == last[0]) return fmt::format("\"{}\" {}", first[0], digits_between(rest_first, rest_last));
  std::vector<std::string> all;
  char low = first[0], high = last[0];
  if (rest_first != zeros) {
    all.push_back(fmt::format("\"{}\" {}", low, digits_between(rest_first, nines)));
    ++low;
  }
  std::string end;
  if (rest_last != nines) {
    end = fmt::format("\"{}\" {}", high, digits_between(zeros, rest_last));
    --high;
  }
  if (low <= high) all.push_back(fmt::format("[{}-{}]{}", low, high, digits(rest_first.size())));
  all.push_back(end);
  return either(all);
}

// Integers from `first` to `last`, 0 <= first; empty: none.
std::string magnitudes(std::int64_t first, std::int64_t last) {
  std::vector<std::string> all;
  for (std::int64_t low = first; low <= last;) {
    const std::string text = std::to_string(low);
    const std::int64_t longest = static_cast<std::int64_t>(std::stoll(std::string(text.size(), '9')));
    const std::int64_t high = std::min(last, longest);
    all.push_back(digits_between(text, std::to_string(high)));
    low = high + 1;
  }
  return either(all);
}

std::string fraction() {
  return R"("." [0-9]{1,6})";
}

// Numbers from `first` to `last`, 0 <= first, of magnitude; either bound may be left out itself.
std::string fractions(double first, double last, bool open_first, bool open_last) {
  const auto limit = static_cast<double>(kMostInteger);
  const auto low = static_cast<std::int64_t>(std::ceil(std::min(first, limit)));
  const auto high = static_cast<std::int64_t>(std::floor(std::min(last, limit)));
  std::vector<std::string> all;
  const bool low_itself = open_first && static_cast<double>(low) == first;
  const std::int64_t from = low_itself ? low + 1 : low;
  if (from <= high - 1) all.push_back(magnitudes(from, high - 1) + " (" + fraction() + ")?");
  if (low_itself && low < high) all.push_back(fmt::format("\"{}.\" [0-9]{{0,5}} [1-9]", low));
  if (from <= high && !(open_last && static_cast<double>(high) == last)) all.push_back(fmt::format("\"{}\"", high));
  if (all.empty() && low > high) {  // both between two integers: that many tenths and hundredths
    for (double scale = 10; scale <= 1000 && all.empty(); scale *= 10) {
      for (double each = std::floor(first * scale); each <= std::ceil(last * scale) && all.size() < 2000; ++each) {
        const double value = each / scale;
        if (value < first || value > last || (open_first && value == first) || (open_last && value == last)) continue;
        all.push_back(fmt::format("\"{}\"", value));
      }
    }
  }
  return either(all);
}

}  // namespace

std::string gbnf_of_integers(const IntegerBounds& bounds) {
  const std::int64_t least = std::max(bounds.least.value_or(-kMostInteger), -kMostInteger);
  const std::int64_t most = std::min(bounds.most.value_or(kMostInteger), kMostInteger);
  if (least == -kMostInteger && most == kMostInteger) return R"("-"? ("0" | [1-9] [0-9]{0,15}))";
  std::vector<std::string> all;
  if (least < 0 && least <= most) {
    const std::string below = magnitudes(most < 0 ? -most : 1, -least);
    if (!below.empty()) all.push_back("\"-\" " + below);
  }
  if (most >= 0) all.push_back(magnitudes(std::max<std::int64_t>(least, 0), most));
  return either(all);
}

std::string gbnf_of_numbers(std::optional<double> least, std::optional<double> most, bool open_least, bool open_most) {
  if (!least && !most) return R"("-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?)";
  const double infinite = std::numeric_limits<double>::max();
  const double low = least.value_or(-infinite), high = most.value_or(infinite);
  std::vector<std::string> all;
  if (high >= 0) all.push_back(fractions(std::max(low, 0.0), high, open_least && low >= 0, open_most));
  if (low < 0) {
    const double nearest = std::max(-high, 0.0);
    const std::string below = fractions(nearest, -low, nearest == 0 || open_most, open_least);
    if (!below.empty()) all.push_back("\"-\" " + below);
  }
  return either(all);
}

}  // namespace hayloft::runtime::grammar
