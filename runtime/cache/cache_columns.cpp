#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/cache/cache.h"

// Other key columns over the same rows.
namespace hayloft::runtime {

void Cache::use_columns(offload::ColumnFormat columns, offload::Arena& arena) {
  if (columns == options_.columns) return;
  if (options_.rows != offload::RowFormat::f16 || !options_.shard.alone()) {
    throw std::logic_error("Cache: columns are made anew of 16-bit rows of a cache alone");
  }
  commit();  // no block is on its way then
  give_back();
  offload::StoreShape shape = store_.shape();
  shape.columns = columns;
  offload::Store made(arena, shape);
  const int kv_heads = shape.kv_heads, width = 2 * shape.head_dim;
  const offload::BlockLayout& layout = made.layout();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const offload::LayerView view = store_.layer(layer);
    for (std::size_t i = 0; i < view.blocks.size(); ++i) {
      const std::int64_t first = static_cast<std::int64_t>(i) * shape.block_tokens;
      const auto tokens = static_cast<int>(std::min<std::int64_t>(shape.block_tokens, view.tokens - first));
      offload::BlockWriter block = made.start_block();
      backend_->threads().parallel_for(kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t head = begin; head < end; ++head) {
          const f16* const rows = offload::f16_row(*view.layout, view.blocks[i], static_cast<int>(head), 0);
          offload::fill_block(layout, block.data(), static_cast<int>(head), rows, width, tokens);
        }
      });
      made.commit(layer, std::move(block), tokens);
    }
  }
  store_ = std::move(made);
  options_.columns = columns;
}

}  // namespace hayloft::runtime
