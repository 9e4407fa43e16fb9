#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/backend.h"

namespace hayloft::testing {

// The part of a cache that one of several ranks has: a view of its own blocks and of the tail. The whole must outlive
// it.
class ShardOfCache {
 public:
  ShardOfCache(const gpu::CacheView& whole, const offload::Shard& shard) : view_(whole) {
    for (std::size_t block = 0; block < whole.store.blocks.size(); ++block) {
      if (shard.owns(static_cast<std::int64_t>(block))) blocks_.push_back(whole.store.blocks[block]);
    }
    view_.shard = shard;
    view_.store.blocks = blocks_;
    view_.store.serials = {};
    if (!shard.alone()) {  // of the own blocks nobody asks for the sums
      view_.value_sum = whole.store.value_sum;
      view_.store.value_sum = {};
    }
    view_.store.tokens = static_cast<std::int64_t>(blocks_.size()) * whole.store.layout->block_tokens;
  }
  ShardOfCache(const ShardOfCache&) = delete;
  ShardOfCache& operator=(const ShardOfCache&) = delete;

  const gpu::CacheView& view() const { return view_; }

 private:
  std::vector<const std::byte*> blocks_;
  gpu::CacheView view_;
};

}  // namespace hayloft::testing
