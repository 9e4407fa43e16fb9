#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hayloft::runtime::grammar {

// Bounds of a number, both included.
struct IntegerBounds {
  std::optional<std::int64_t> least, most;
};

// A group (GBNF) of the integers within the bounds, as JSON writes them, of at most 16 digits where there is no bound.
std::string gbnf_of_integers(const IntegerBounds& bounds);

// A group of the numbers within the bounds, of at most 15 digits, six of them decimals unless a bound has more; zeros
// at the end of a bound's decimals are left out. Empty where there is none.
std::string gbnf_of_numbers(std::optional<double> least, std::optional<double> most, bool open_least, bool open_most);

}  // namespace hayloft::runtime::grammar
