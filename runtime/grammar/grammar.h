#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace hayloft::runtime {
class Tokenizer;
}

namespace hayloft::runtime::grammar {

using Bytes = std::bitset<256>;

// A byte that no text in UTF-8 has: three more behind it are the id of a token that is meant as such, the highest
// first.
inline constexpr unsigned char kTokenMark = 0xFF;

// One symbol of a rule's right side: a byte out of several, another rule, or the end of the alternative.
struct Symbol {
  enum class Kind : std::uint8_t { bytes, rule, end };
  Kind kind = Kind::end;
  std::int32_t index = 0;  // of `sets`, or of `rules`
};

// A context-free grammar over bytes. The alternatives of all rules lie one after another in `symbols`, each with its
// end; texts and characters of UTF-8 have become bytes.
struct Grammar {
  std::vector<Symbol> symbols;
  std::vector<Bytes> sets;
  std::vector<std::vector<std::int32_t>> rules;  // where the alternatives of each begin
  std::int32_t root = 0;
};

// Returns the grammar of the texts of both.
Grammar either(const Grammar& one, const Grammar& other);

// Reads a grammar as llama.cpp writes it (GBNF): NAME ::= alternatives of "texts", [classes], ., names, groups and
// tokens, <TEXT> or <[ID]>, with ! before them any other token, and * + ? {n} {n,} {n,m} behind any of them; # begins a
// comment. The tokenizer knows the tokens; null: there are none. Throws Error naming the line, what is not defined,
// what calls itself before it reads a byte, what never ends, and what is too large.
Grammar parse_gbnf(const std::string& text, const Tokenizer* tokenizer = nullptr);

}  // namespace hayloft::runtime::grammar
