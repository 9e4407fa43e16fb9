#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/bpe/merges.h"

namespace hayloft::runtime {

// The ids of a vocabulary by their texts. Open addressing with linear probing; an entry is an id and half of its text's
// hash, so that a text that is not there costs one cache line mostly: reading a vocabulary with scores looks up every
// way of cutting every token in two.
class TextIds {
 public:
  // Views `texts`, which outlives it: id i is texts[i].
  explicit TextIds(const std::vector<std::string>& texts) : texts_(texts) { reserve(0); }

  // For `count` texts, while there are none yet.
  void reserve(std::size_t count) {
    entries_.assign(std::bit_ceil(2 * count + 2), {});
    mask_ = entries_.size() - 1;
  }

  // False where the text of that id has one already. There is room for as many as were reserved.
  bool add(TokenId id) {
    const std::string_view text = texts_[static_cast<std::size_t>(id)];
    Entry& entry = entries_[slot(text)];
    if (entry.id >= 0) return false;
    entry = {tag(hash(text)), id};
    return true;
  }

  // -1 where there is none.
  TokenId find(std::string_view text) const { return entries_[slot(text)].id; }

 private:
  struct Entry {
    std::uint32_t tag = 0;
    TokenId id = -1;
  };
  static std::uint64_t hash(std::string_view text) { return std::hash<std::string_view>()(text); }
  static std::uint32_t tag(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

  // Returns where the text is, or the free slot where it belongs.
  std::size_t slot(std::string_view text) const {
    const std::uint64_t own = hash(text);
    for (std::size_t at = own & mask_;; at = (at + 1) & mask_) {
      const Entry& entry = entries_[at];
      if (entry.id < 0 || (entry.tag == tag(own) && texts_[static_cast<std::size_t>(entry.id)] == text)) return at;
    }
  }

  const std::vector<std::string>& texts_;
  std::vector<Entry> entries_;  // a power of two, at most half of them in use
  std::size_t mask_ = 0;
};

}  // namespace hayloft::runtime
