#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/backend.h"

namespace hayloft::runtime::cluster {

// The part of a global layer's cache that this rank attends to, as a cache of own positions: the blocks of its store,
// and behind them the tail where it is this rank's turn. All ranks have the tail; it is attended to by the one whose
// block its first tokens will fill, and with it the softmax's sinks, so that each is attended to once and ranks take
// turns.
class Part {
 public:
  explicit Part(const gpu::CacheView& whole)
      : cache_(whole), stored_(whole.stored_tokens()), block_tokens_(whole.store.layout->block_tokens) {
    has_tail_ = whole.shard.owns(stored_ / block_tokens_);
    cache_.tail.position = whole.store.tokens;
    if (has_tail_) return;
    cache_.tail.tokens = 0;
    cache_.sinks = nullptr;
  }

  const gpu::CacheView& cache() const { return cache_; }
  bool has_tail() const { return has_tail_; }

  // The own position of a whole one, or of the first own one from there.
  std::int64_t own(std::int64_t position) const {
    if (position <= stored_) return cache_.shard.own(position, block_tokens_);
    return cache_.store.tokens + (has_tail_ ? position - stored_ : 0);
  }
  gpu::Attended::Range own(const gpu::Attended::Range& range) const { return {own(range.begin), own(range.end)}; }

  // Return whether a position in the store is an own one; and the whole position of an own one.
  bool holds(std::int64_t position) const { return cache_.shard.owns(position / block_tokens_); }
  std::int64_t whole(std::int64_t position) const { return cache_.shard.whole(position, block_tokens_); }

 private:
  gpu::CacheView cache_;
  std::int64_t stored_;
  int block_tokens_;
  bool has_tail_ = false;
};

}  // namespace hayloft::runtime::cluster
