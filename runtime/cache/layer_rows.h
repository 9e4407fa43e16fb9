#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/snapshot/snapshot.h"
#include "offload/store/store.h"

namespace hayloft::runtime {

// K and V of one global layer as they lie: blocks of a store, then a tail. Views what it is made of.
struct LayerRows {
  offload::LayerView store;
  offload::TailImage tail;  // from store.tokens on

  std::int64_t tokens() const { return tail.position + tail.tokens; }

  // The rows of one head in the order of their positions, run by run: f16 [n][2 d], K then V of each token. A run is
  // good until `take` returns.
  void visit(int head, const std::function<void(std::span<const f16> rows)>& take) const {
    const int d = store.layout->head_dim;
    std::vector<f16> space;
    for (std::int64_t first = 0; first < store.tokens; first += store.layout->block_tokens) {
      const std::int64_t n = std::min<std::int64_t>(store.layout->block_tokens, store.tokens - first);
      const auto elements = static_cast<std::size_t>(n * 2 * d);
      if (store.layout->row_format != offload::RowFormat::f16) space.resize(elements);
      take({store.rows(head, first, n, space.data()), elements});
    }
    const std::int64_t width = tail.tokens * 2 * d;
    if (width > 0) take(tail.rows.subspan(static_cast<std::size_t>(head * width), static_cast<std::size_t>(width)));
  }
};

}  // namespace hayloft::runtime
