#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace hayloft::runtime {

using TokenId = std::int32_t;

// The merges of a BPE model: which two tokens join to which third, and how early. Open addressing with linear probing;
// a look-up is one cache line mostly, and encoding is little else than look-ups.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = 0;  // smaller joins first
    TokenId joined = 0;
  };

  MergeTable();

  // Joining left and right gives `joined` at `rank`; the pair's earlier entry is replaced.
  void set(TokenId left, TokenId right, Merge merge);

  const Merge* find(TokenId left, TokenId right) const {
    const std::uint64_t key = pack(left, right);
    for (std::size_t at = slot(key);; at = (at + 1) & mask_) {
      if (entries_[at].key == key) return &entries_[at].merge;
      if (entries_[at].key == kNone) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // no pair of non-negative ids packs to it
  struct Entry {
    std::uint64_t key = kNone;
    Merge merge;
  };
  static std::uint64_t pack(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> 32 & mask_; }
  Entry& entry(std::uint64_t key);  // of the key, or the free one where it belongs
  void resize(std::size_t slots);

  std::vector<Entry> entries_;  // a power of two, at most half of them in use
  std::size_t used_ = 0;
  std::size_t mask_ = 0;
};

// Byte-pair encoding of one word (Sennrich et al., arXiv 1508.07909): joins the pair of smallest rank, the leftmost of
// equals, until none is left. A queue of pairs over a linked list: O(n log n) in the length of the word. Holds the
// scratch memory of one thread.
class Merger {
 public:
  explicit Merger(const MergeTable& merges) : merges_(merges) {}

  // Joins the tokens of `word` in place, to its final, shorter length.
  void merge(std::vector<TokenId>& word);

 private:
  struct Symbol {
    TokenId token;
    std::uint32_t previous, next;  // positions, kEnd at the ends
    std::uint32_t rank;            // of the pair with the next symbol, kNoMerge if they do not join
    TokenId joined;                // what that pair joins to
  };
  static constexpr std::uint32_t kEnd = ~std::uint32_t{0};
  static constexpr std::uint32_t kNoMerge = ~std::uint32_t{0};

  void rank_pair(std::uint32_t at);

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> queue_;  // min-heap of rank << 32 | position
};

}  // namespace hayloft::runtime
