#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/bpe/merges.h"

namespace hayloft::runtime {

// Remembers the tokens of words within one encoding: text repeats its words, and a look-up is far cheaper than merging.
// Short words only; once full it remembers no more. Not thread-safe.
class WordCache {
 public:
  WordCache();

  // Appends the tokens of `word` to out; false if they are not known.
  bool lookup(std::string_view word, std::vector<TokenId>& out) const;

  void remember(std::string_view word, const TokenId* tokens, std::size_t count);

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t key;     // offset in keys_
    std::uint32_t tokens;  // offset in tokens_
    std::uint16_t key_bytes;
    std::uint16_t count;  // 0: a free slot
  };

  std::size_t slot(std::string_view word, std::uint64_t hash) const;
  void grow();

  std::vector<Entry> entries_;  // open addressing, at most half in use
  std::size_t used_ = 0;
  std::string keys_;
  std::vector<TokenId> tokens_;
};

}  // namespace hayloft::runtime
