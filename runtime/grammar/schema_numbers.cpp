#include "runtime/grammar/schema_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string_view>
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

// Digits beyond which no more are compared: two numbers of so many that differ are different as doubles too.
constexpr int kDigits = 15;
constexpr int kUsualDecimals = 6;

// A bound, 0 <= value, as JSON would write it without an exponent.
struct Decimal {
  std::int64_t whole = 0;
  std::string decimals;  // without zeros at the end
  bool open = false;     // the bound itself is out

  int leading_zeros() const {
    const std::size_t first = decimals.find_first_not_of('0');
    return static_cast<int>(first == std::string::npos ? decimals.size() : first);
  }
};

Decimal decimal(double value, bool open) {
  std::array<char, 400> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed).ptr;
  const std::string_view all(text.data(), static_cast<std::size_t>(end - text.data()));
  const std::size_t point = all.find('.');
  Decimal number{0, "", open};
  std::from_chars(all.data(), all.data() + std::min(point, all.size()), number.whole);
  if (point != std::string_view::npos) number.decimals = all.substr(point + 1);
  while (number.decimals.ends_with('0')) number.decimals.pop_back();
  return number;
}

std::string decimals(int most) {
  return most > 0 ? fmt::format(" (\".\" [0-9]{{1,{}}})?", most) : std::string();
}

// Writes what may stand behind a decimal point between two bounds, digit by digit: of each that still binds, all digits
// so far are its own.
class Decimals {
 public:
  Decimals(const Decimal* least, const Decimal* most) : least_(least), most_(most) {}

  // Returns what follows the digits of the whole number; empty with `none` set where nothing may.
  std::string behind_whole(int left, bool& none) const {
    const bool end = may_end(0, least_ != nullptr, most_ != nullptr);
    const std::string more = digits_from(0, least_ != nullptr, most_ != nullptr, left);
    none = !end && more.empty();
    if (more.empty()) return "";
    return end ? " (\".\" " + more + ")?" : " \".\" " + more;
  }

 private:
  static bool is_zero(const Decimal& bound, std::size_t from) { return from >= bound.decimals.size(); }
  static char digit(const Decimal& bound, std::size_t at) { return is_zero(bound, at) ? '0' : bound.decimals[at]; }

  bool may_end(std::size_t at, bool low, bool high) const {
    if (low && !(is_zero(*least_, at) && !least_->open)) return false;
    return !(high && is_zero(*most_, at) && most_->open);
  }

  // Returns one or more digits, `left` at most; empty: none fit.
  std::string digits_from(std::size_t at, bool low, bool high, int left) const {
    if (low && is_zero(*least_, at) && !least_->open) low = false;  // whatever follows is not below it
    if (high && is_zero(*most_, at)) return "";                     // zeros alone would fit, which nobody misses
    if (left == 0) return "";
    if (!low && !high) return fmt::format("[0-9]{{1,{}}}", left);
    if (!high && is_zero(*least_, at)) {
      return left == 1 ? "[1-9]" : fmt::format("[0-9]{{0,{}}} [1-9]", left - 1);
    }
    const char first = low ? digit(*least_, at) : '0', last = high ? digit(*most_, at) : '9';
    std::vector<std::string> all;
    const auto add = [&](char from, char to, bool is_low, bool is_high) {
      if (from > to) return;
      const bool end = may_end(at + 1, is_low, is_high);
      const std::string more = digits_from(at + 1, is_low, is_high, left - 1);
      if (!end && more.empty()) return;
      const std::string here = from == to ? fmt::format("\"{}\"", from) : fmt::format("[{}-{}]", from, to);
      all.push_back(here + (more.empty() ? "" : end ? " (" + more + ")?" : " " + more));
    };
    if (low && high && first == last) {
      add(first, first, true, true);
    } else {
      if (low) add(first, first, true, false);
      add(static_cast<char>(first + (low ? 1 : 0)), static_cast<char>(last - (high ? 1 : 0)), false, false);
      if (high) add(last, last, false, true);
    }
    return either(all);
  }

  const Decimal* const least_;  // null: does not bind
  const Decimal* const most_;
};

// Numbers between the bounds, 0 <= first, of magnitude; either bound may be left out itself.
std::string fractions(double first, double last, bool open_first, bool open_last) {
  if (first > last) return "";
  const auto limit = static_cast<double>(kMostInteger);
  const bool bounded = last < limit;
  const Decimal low = decimal(first, open_first), high = decimal(std::min(last, limit), bounded && open_last);
  const int digits_of_whole = static_cast<int>(std::to_string(high.whole).size());
  int most = bounded ? std::max(kDigits - digits_of_whole, 0) : kUsualDecimals;
  if (bounded && high.whole == 0) most = kDigits + high.leading_zeros();
  const int wanted = static_cast<int>(std::max(low.decimals.size(), high.decimals.size())) + 1;
  const int left = std::min(most, std::max(kUsualDecimals, wanted));
  std::vector<std::string> all;
  const auto add = [&](const Decimal& whole, const Decimals& behind) {
    bool none = false;
    const std::string more = behind.behind_whole(left, none);
    if (!none) all.push_back(fmt::format("\"{}\"{}", whole.whole, more));
  };
  if (low.whole == high.whole) {
    add(low, Decimals(&low, &high));
  } else {
    add(low, Decimals(&low, nullptr));
    const std::string between = magnitudes(low.whole + 1, high.whole - 1);
    if (!between.empty()) all.push_back(between + decimals(std::min(left, kUsualDecimals)));
    add(high, Decimals(nullptr, &high));
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
