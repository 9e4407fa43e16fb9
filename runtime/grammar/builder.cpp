#include "runtime/grammar/builder.h"

#include <algorithm>

#include "offload/error.h"

namespace hayloft::runtime::grammar {
namespace {

constexpr std::size_t kMostSymbols = 1'000'000;
constexpr std::size_t kMostRules = 200'000;
constexpr std::uint32_t kLastCode = 0x10FFFF;

std::string utf8_of(std::uint32_t code) {
  std::string text;
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
  return text;
}

Bytes from_to(unsigned char first, unsigned char last) {
  Bytes set;
  for (unsigned byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}

// The ranges in order, without overlaps.
std::vector<CodeRange> merged(std::vector<CodeRange> ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::first);
  std::vector<CodeRange> out;
  for (const CodeRange& each : ranges) {
    if (!out.empty() && each.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, each.last);
    } else {
      out.push_back(each);
    }
  }
  return out;
}

std::vector<CodeRange> all_others(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> out;
  std::uint32_t next = 0;
  for (const CodeRange& each : ranges) {
    if (each.first > next) out.push_back({next, each.first - 1});
    next = each.last + 1;
  }
  if (next <= kLastCode) out.push_back({next, kLastCode});
  return out;
}

}  // namespace

Grammar either(const Grammar& one, const Grammar& other) {
  Grammar both = one;
  const auto symbols = static_cast<std::int32_t>(one.symbols.size()), sets = static_cast<std::int32_t>(one.sets.size()),
             rules = static_cast<std::int32_t>(one.rules.size());
  for (Symbol symbol : other.symbols) {
    if (symbol.kind != Symbol::Kind::end) symbol.index += symbol.kind == Symbol::Kind::bytes ? sets : rules;
    both.symbols.push_back(symbol);
  }
  both.sets.insert(both.sets.end(), other.sets.begin(), other.sets.end());
  for (std::vector<std::int32_t> alternatives : other.rules) {
    for (std::int32_t& at : alternatives) at += symbols;
    both.rules.push_back(std::move(alternatives));
  }
  std::vector<std::int32_t>& root = both.rules.emplace_back();
  for (const std::int32_t of : {one.root, other.root + rules}) {
    root.push_back(static_cast<std::int32_t>(both.symbols.size()));
    both.symbols.push_back({Symbol::Kind::rule, of});
    both.symbols.push_back({});
  }
  both.root = static_cast<std::int32_t>(both.rules.size()) - 1;
  return both;
}

std::int32_t Builder::new_rule() {
  if (rules_.size() >= kMostRules) fail("the grammar is too large: over {} rules", kMostRules);
  rules_.emplace_back();
  return static_cast<std::int32_t>(rules_.size() - 1);
}

std::int32_t Builder::rule(const std::string& name) {
  const auto found = names_.find(name);
  if (found != names_.end()) return found->second;
  return names_[name] = new_rule();
}

void Builder::add(std::int32_t rule, Sequence alternative) {
  symbols_ += alternative.size() + 1;
  if (symbols_ > kMostSymbols) fail("the grammar is too large: over {} symbols", kMostSymbols);
  rules_[static_cast<std::size_t>(rule)].push_back(std::move(alternative));
}

Symbol Builder::bytes(const Bytes& set) {
  const auto [at, added] = known_sets_.try_emplace(set.to_string(), static_cast<std::int32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  return {Symbol::Kind::bytes, at->second};
}

Builder::Sequence Builder::text(std::string_view text) {
  Sequence sequence;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    sequence.push_back(bytes(from_to(byte, byte)));
  }
  return sequence;
}

// Adds the characters of a range as alternatives of byte ranges: both ends have as many bytes, and all but the last
// differing one of them range over everything.
void Builder::add_range(std::int32_t rule, std::uint32_t first, std::uint32_t last) {
  for (const std::uint32_t end : {0x7FU, 0x7FFU, 0xFFFFU}) {
    if (first <= end && last > end) {
      add_range(rule, first, end);
      return add_range(rule, end + 1, last);
    }
  }
  const std::size_t size = utf8_of(first).size();
  for (std::size_t tail = 1; tail < size; ++tail) {
    const std::uint32_t mask = (1U << (6 * tail)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      add_range(rule, first, first | mask);
      return add_range(rule, (first | mask) + 1, last);
    }
    if ((last & mask) != mask) {
      add_range(rule, first, (last & ~mask) - 1);
      return add_range(rule, last & ~mask, last);
    }
  }
  const std::string low = utf8_of(first), high = utf8_of(last);
  Sequence sequence;
  for (std::size_t i = 0; i < size; ++i) {
    sequence.push_back(bytes(from_to(static_cast<unsigned char>(low[i]), static_cast<unsigned char>(high[i]))));
  }
  add(rule, std::move(sequence));
}

Symbol Builder::characters(std::vector<CodeRange> ranges, bool others) {
  ranges = merged(std::move(ranges));
  if (others) ranges = all_others(ranges);
  if (!ranges.empty() && ranges.back().last < 0x80) {
    Bytes set;
    for (const CodeRange& each : ranges)
      set |= from_to(static_cast<unsigned char>(each.first), static_cast<unsigned char>(each.last));
    return bytes(set);
  }
  const std::int32_t made = new_rule();
  Bytes ascii;
  for (const CodeRange& each : ranges) {
    if (each.first < 0x80) {
      ascii |= from_to(static_cast<unsigned char>(each.first), static_cast<unsigned char>(std::min(each.last, 0x7FU)));
    }
    // Surrogates are no characters.
    const std::uint32_t first = std::max(each.first, 0x80U);
    if (first <= std::min(each.last, 0xD7FFU)) add_range(made, first, std::min(each.last, 0xD7FFU));
    if (std::max(first, 0xE000U) <= each.last)
      add_range(made, std::max(first, 0xE000U), std::min(each.last, kLastCode));
  }
  if (ascii.any()) add(made, {bytes(ascii)});
  return call(made);
}

Builder::Sequence Builder::token(std::int32_t id, bool others) {
  const auto one = [](std::int32_t byte) {
    return from_to(static_cast<unsigned char>(byte), static_cast<unsigned char>(byte));
  };
  const Bytes digits[] = {one((id >> 16) & 0xFF), one((id >> 8) & 0xFF), one(id & 0xFF)};
  Sequence sequence{bytes(one(kTokenMark))};
  if (!others) {
    for (const Bytes& each : digits) sequence.push_back(bytes(each));
    return sequence;
  }
  const std::int32_t made = new_rule();
  for (std::size_t differs = 0; differs < std::size(digits); ++differs) {
    Sequence other;
    for (std::size_t i = 0; i < std::size(digits); ++i) {
      other.push_back(bytes(i < differs ? digits[i] : i == differs ? ~digits[i] : Bytes().set()));
    }
    add(made, std::move(other));
  }
  sequence.push_back(call(made));
  return sequence;
}

Symbol Builder::repeat(const Sequence& sequence, int least, int most) {
  const std::int32_t again = new_rule();  // what may follow the least
  if (most < 0) {
    Sequence more = sequence;
    more.push_back(call(again));
    add(again, std::move(more));
    add(again, {});
  } else {
    std::int32_t at = again;
    for (int i = least; i < most; ++i) {
      const std::int32_t next = new_rule();
      Sequence more = sequence;
      more.push_back(call(next));
      add(at, std::move(more));
      add(at, {});
      at = next;
    }
    add(at, {});
  }
  const std::int32_t whole = new_rule();
  Sequence all;
  for (int i = 0; i < least; ++i) {
    all.insert(all.end(), sequence.begin(), sequence.end());
    if (all.size() > kMostSymbols) fail("the grammar is too large: over {} symbols", kMostSymbols);
  }
  all.push_back(call(again));
  add(whole, std::move(all));
  return call(whole);
}

std::string Builder::name_of(std::int32_t rule) const {
  for (const auto& [name, index] : names_) {
    if (index == rule) return name;
  }
  return "(a group)";
}

// A rule that is reached from its own beginning without a byte before it would be entered for ever.
void Builder::check_recursion(const Grammar& grammar) const {
  const std::size_t count = grammar.rules.size();
  std::vector<char> nullable(count, 0);
  const auto symbol = [&](std::int32_t at) { return grammar.symbols[static_cast<std::size_t>(at)]; };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t rule = 0; rule < count; ++rule) {
      if (nullable[rule]) continue;
      for (std::int32_t at : grammar.rules[rule]) {
        while (symbol(at).kind == Symbol::Kind::rule && nullable[static_cast<std::size_t>(symbol(at).index)]) ++at;
        if (symbol(at).kind == Symbol::Kind::end) nullable[rule] = changed = true;
      }
    }
  }
  std::vector<char> seen(count, 0);  // 1: being followed, 2: followed
  std::vector<std::vector<std::int32_t>> first(count);
  for (std::size_t rule = 0; rule < count; ++rule) {
    for (std::int32_t at : grammar.rules[rule]) {
      for (; symbol(at).kind == Symbol::Kind::rule; ++at) {
        first[rule].push_back(symbol(at).index);
        if (!nullable[static_cast<std::size_t>(symbol(at).index)]) break;
      }
    }
  }
  struct Visit {
    std::int32_t rule;
    std::size_t next;
  };
  for (std::size_t start = 0; start < count; ++start) {
    if (seen[start]) continue;
    std::vector<Visit> path{{static_cast<std::int32_t>(start), 0}};
    seen[start] = 1;
    while (!path.empty()) {
      Visit& top = path.back();
      const auto& calls = first[static_cast<std::size_t>(top.rule)];
      if (top.next == calls.size()) {
        seen[static_cast<std::size_t>(top.rule)] = 2;
        path.pop_back();
        continue;
      }
      const std::int32_t called = calls[top.next++];
      char& state = seen[static_cast<std::size_t>(called)];
      if (state == 1) {
        fail("the rule {} calls itself before it reads anything, or repeats what may be empty", name_of(called));
      }
      if (state == 0) {
        state = 1;
        path.push_back({called, 0});
      }
    }
  }
}

// A rule of which every alternative needs a rule that does not end would be followed for ever.
void Builder::check_ends(const Grammar& grammar) const {
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> callers(grammar.rules.size());  // and alternatives
  std::vector<std::vector<std::size_t>> missing(grammar.rules.size());                          // of each alternative
  std::vector<char> ends(grammar.rules.size(), 0);
  std::vector<std::size_t> found;
  const auto add = [&](std::size_t rule) {
    if (!ends[rule]) found.push_back(rule);
    ends[rule] = 1;
  };
  for (std::size_t rule = 0; rule < grammar.rules.size(); ++rule) {
    missing[rule].resize(grammar.rules[rule].size());
    for (std::size_t i = 0; i < missing[rule].size(); ++i) {
      for (auto at = static_cast<std::size_t>(grammar.rules[rule][i]); grammar.symbols[at].kind != Symbol::Kind::end;
           ++at) {
        if (grammar.symbols[at].kind != Symbol::Kind::rule) continue;
        callers[static_cast<std::size_t>(grammar.symbols[at].index)].emplace_back(rule, i);
        ++missing[rule][i];
      }
      if (missing[rule][i] == 0) add(rule);
    }
  }
  while (!found.empty()) {
    const std::size_t rule = found.back();
    found.pop_back();
    for (const auto& [caller, i] : callers[rule]) {
      if (--missing[caller][i] == 0) add(caller);
    }
  }
  const auto endless = std::ranges::find(ends, 0);
  if (endless == ends.end()) return;
  fail("no text ends the rule {}: it always calls itself again",
       name_of(static_cast<std::int32_t>(endless - ends.begin())));
}

Grammar Builder::finish(const std::string& root) {
  if (!names_.contains(root)) fail("the grammar has no rule \"{}\", where a text begins", root);
  Grammar grammar;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].empty()) fail("the rule {} is not defined", name_of(static_cast<std::int32_t>(i)));
    grammar.rules.emplace_back();
    for (const Sequence& alternative : rules_[i]) {
      grammar.rules.back().push_back(static_cast<std::int32_t>(grammar.symbols.size()));
      grammar.symbols.insert(grammar.symbols.end(), alternative.begin(), alternative.end());
      grammar.symbols.push_back({});
    }
  }
  grammar.sets = std::move(sets_);
  grammar.root = names_.at(root);
  check_recursion(grammar);
  check_ends(grammar);
  return grammar;
}

}  // namespace hayloft::runtime::grammar
