#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/tokenizer/bpe/merges.h"

namespace hayloft::runtime {

class Bpe;
class Field;
class Normalizer;

// One entry of "added_tokens": text that is a token wherever it stands, before any splitting and merging.
struct AddedToken {
  std::string content;
  TokenId id;
  bool special;         // left out of decoded text unless asked for
  bool single_word;     // only where no word character touches it
  bool lstrip, rstrip;  // takes in the white space on its left, right
  bool normalized;      // looked for in normalized text, in its own normalized form

  // An object with content and flags, as every file writes it; the id is left at -1. special: what the token is,
  // whatever the file says.
  static AddedToken read(const Field& field, std::optional<bool> special);
  bool has_flags_of(const AddedToken& other) const;
};

// Finds added tokens in text: of those that begin leftmost, the longest.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher();

  // text (not empty) is what is looked for; the first of two tokens with the same text counts.
  void add(std::string_view text, const AddedToken& token);

  // Calls section(begin, end, id) for each token and, with id -1, for each stretch of text between, in order.
  template <class Section>
  void split(std::string_view text, Section&& section) const {
    std::size_t done = 0;
    Match match;
    for (std::size_t from = 0; next(text, from, match); from = match.end) {
      auto [begin, end] = extent(text, match, done);
      if (begin == end) continue;
      if (done < begin) section(done, begin, TokenId{-1});
      section(begin, end, tokens_[match.token].id);
      done = end;
    }
    if (done < text.size()) section(done, text.size(), TokenId{-1});
  }

  // Calls at(begin) for each place at which some token's text begins, in order; its flags do not matter.
  template <class At>
  void begins(std::string_view text, At&& at) const {
    Match match;
    for (std::size_t from = 0; next(text, from, match); from = match.begin + 1) at(match.begin);
  }

 private:
  struct Flags {
    TokenId id;
    bool single_word, lstrip, rstrip;
  };
  struct Node {
    std::int32_t token = -1;                                   // in tokens_, of the text that ends here
    std::vector<std::pair<std::uint8_t, std::uint32_t>> next;  // by byte, ascending; to nodes_
  };
  struct Match {
    std::size_t begin, end;
    std::size_t token;
  };

  // The node behind `byte`, nullptr if no token goes on so.
  const Node* descend(const Node& node, std::uint8_t byte) const;
  bool next(std::string_view text, std::size_t from, Match& match) const;
  // The match with the white space it takes in, none of it before `done`; empty if it has to be a word and is not.
  std::pair<std::size_t, std::size_t> extent(std::string_view text, const Match& match, std::size_t done) const;

  std::vector<Flags> tokens_;
  std::vector<Node> nodes_;            // a trie; nodes_[0] is the root
  std::array<bool, 256> starts_ = {};  // the first bytes of tokens: most text is passed over by these alone
};

// The field "added_tokens" of a tokenizer.json. A token that the vocabulary has too has the vocabulary's id. Throws
// Error naming the field if a token is damaged.
std::vector<AddedToken> read_added_tokens(const Field& added, const Bpe& bpe);

// All added tokens of a tokenizer. Immutable and thread-safe.
class AddedTokens {
 public:
  AddedTokens() = default;

  // tokens: those of tokenizer.json, with their ids. declared: further ones, and others of the same content that change
  // their flags (declared_tokens). A further one has the vocabulary's id or, where that does not know it, the next one
  // behind all others.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<AddedToken>& declared, const Bpe& bpe,
              const Normalizer& normalizer);

  const AddedToken* find(TokenId id) const;
  const AddedToken* find(std::string_view content) const;
  TokenId size() const { return size_; }  // the largest id plus one

  const AddedTokenMatcher& raw() const { return raw_; }                // for text as it came
  const AddedTokenMatcher& normalized() const { return normalized_; }  // for text after the normalizer
  const AddedTokenMatcher& special() const { return special_; }        // of special tokens alone, as they are written

 private:
  void declare(AddedToken token, const Bpe& bpe);

  TokenId size_ = 0;
  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  std::unordered_map<std::string, std::size_t> by_content_;
  AddedTokenMatcher raw_, normalized_, special_;
};

}  // namespace hayloft::runtime
