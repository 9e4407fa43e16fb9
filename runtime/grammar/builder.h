#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/grammar/grammar.h"

namespace hayloft::runtime::grammar {

// Code points from `first` to `last`.
struct CodeRange {
  std::uint32_t first, last;
};

// Puts a grammar together, rule by rule and alternative by alternative. Throws Error where it becomes too large.
class Builder {
 public:
  using Sequence = std::vector<Symbol>;  // without its end

  std::int32_t new_rule();
  std::int32_t rule(const std::string& name);  // by its name, made where there is none yet
  void add(std::int32_t rule, Sequence alternative);

  Symbol call(std::int32_t rule) const { return {Symbol::Kind::rule, rule}; }
  Symbol bytes(const Bytes& set);
  Sequence text(std::string_view text);
  // One character out of these ranges, or out of all others.
  Symbol characters(std::vector<CodeRange> ranges, bool others);
  // Reads this token, of an id below 2^24, or any other.
  Sequence token(std::int32_t id, bool others);
  // A sequence from `least` to `most` times; most < 0: any number.
  Symbol repeat(const Sequence& sequence, int least, int most);

  // Throws Error naming a rule without alternatives, one that calls itself before it reads a byte, or one that no text
  // ends.
  Grammar finish(const std::string& root);

 private:
  void add_range(std::int32_t rule, std::uint32_t first, std::uint32_t last);
  void check_recursion(const Grammar& grammar) const;
  void check_ends(const Grammar& grammar) const;
  std::string name_of(std::int32_t rule) const;

  std::map<std::string, std::int32_t> names_;
  std::vector<std::vector<Sequence>> rules_;
  std::vector<Bytes> sets_;
  std::map<std::string, std::int32_t> known_sets_;
  std::size_t symbols_ = 0;
};

}  // namespace hayloft::runtime::grammar
