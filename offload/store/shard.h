#pragma once

#include <cstdint>

namespace hayloft::offload {

// Says which blocks of a context a rank holds when several machines hold it together: block i lies on rank i mod N. So
// ranks have the same number of blocks, give or take one, at every length; and each knows by itself whose block the
// next one is. Positions of the context are `whole` ones; own positions count those of a rank's own blocks alone, in
// the same order. Blocks are full.
struct Shard {
  int rank = 0;
  int ranks = 1;

  friend bool operator==(const Shard&, const Shard&) = default;
  bool alone() const { return ranks == 1; }
  int owner(std::int64_t block) const { return static_cast<int>(block % ranks); }
  bool owns(std::int64_t block) const { return owner(block) == rank; }

  // Returns how many of the first `blocks` of the context are own ones.
  std::int64_t own_blocks(std::int64_t blocks) const { return (blocks - rank + ranks - 1) / ranks; }

  // Returns how many of the positions [0, position), which are whole blocks, lie in own blocks: the own position of the
  // first own one from there.
  std::int64_t own(std::int64_t position, int block_tokens) const {
    const std::int64_t block = position / block_tokens;
    return own_blocks(block) * block_tokens + (owns(block) ? position % block_tokens : 0);
  }

  // The whole position of an own one.
  std::int64_t whole(std::int64_t own_position, int block_tokens) const {
    return (own_position / block_tokens * ranks + rank) * block_tokens + own_position % block_tokens;
  }
};

}  // namespace hayloft::offload
