#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace hayloft::runtime {

// Says which share of the positions a step attends to, at least, where it attends to all: but for rounding.
inline constexpr double every_position = 1 - 1e-9;

// Says which tokens of a text were decoded by steps, or read in ways, that left positions out. Keys and values of
// these, and of all that was read behind them, are not those of exact attention, however it goes on.
struct ApproximateTokens {
  static constexpr std::size_t most_methods = 16;
  std::int64_t first = 0;  // position of the first of them
  // Names what made them, as method_label() or prefill_label(), behind the sixteenth "others"; empty: there are none.
  std::set<std::string> methods;

  // Says behind a method's label how a text was read that it has decoded in part.
  static constexpr const char* suffix = " where it was decoded";

  bool none() const { return methods.empty(); }

  void add(std::int64_t position, const std::string& method) {
    if (none() || position < first) first = position;
    methods.insert(methods.size() < most_methods || methods.contains(method) ? method : "others");
  }

  void add(const ApproximateTokens& other) {
    for (const std::string& method : other.methods) add(other.first, method);
  }

  // Forgets them where the text has been cut to so many tokens, before the first.
  void cut(std::int64_t tokens) {
    if (first >= tokens) methods.clear();
  }
};

}  // namespace hayloft::runtime
