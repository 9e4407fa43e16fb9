#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "offload/snapshot/snapshot.h"
#include "offload/store/store.h"

namespace hayloft::runtime {

// K and V of one global layer as they lie: blocks of a store, then a tail. Views what it is made of.
struct LayerRows {
  offload::LayerView store;
  offload::TailImage tail;  // from store.tokens on

  std::int64_t tokens() const { return tail.position + tail.tokens; }

  // The rows of one head in the order of their positions, run by run: f16 [n][2 d], K then V of each token.
  void visit(int head, const std::function<void(std::span<const f16> rows)>& take) const {
    const int d = store.layout->head_dim;
    for (std::int64_t first = 0; first < store.tokens; first += store.layout->block_tokens) {
      const std::int64_t n = std::min<std::int64_t>(store.layout->block_tokens, store.tokens - first);
      take({store.row(head, first), static_cast<std::size_t>(n * 2 * d)});
    }
    const std::int64_t width = tail.tokens * 2 * d;
    if (width > 0) take(tail.rows.subspan(static_cast<std::size_t>(head * width), static_cast<std::size_t>(width)));
  }
};

}  // namespace hayloft::runtime
