#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime::grammar {

// The bytes of all tokens but the special ones, as a tree: tokens that begin alike share their beginning. Immutable.
class Vocabulary {
 public:
  explicit Vocabulary(const Tokenizer& tokenizer);

  struct Node {
    std::int32_t child = -1, sibling = -1;  // the first below it; the next beside it
    std::int32_t tokens = -1;               // the first of its tokens, of same(); -1: none
    unsigned char byte = 0;
  };
  const std::vector<Node>& nodes() const { return nodes_; }                                       // the root first
  std::int32_t same(std::int32_t token) const { return same_[static_cast<std::size_t>(token)]; }  // next of those bytes
  const std::string& bytes(std::int32_t token) const { return bytes_[static_cast<std::size_t>(token)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(bytes_.size()); }

 private:
  std::vector<std::string> bytes_;  // of each token; empty of special ones
  std::vector<std::int32_t> same_;
  std::vector<Node> nodes_;
};

}  // namespace hayloft::runtime::grammar
