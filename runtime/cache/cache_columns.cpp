#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/cache/cache.h"

// Other key columns over the same rows.
namespace hayloft::runtime {

bool remakes_columns(const CacheOptions& options) {
  return options.rows == offload::RowFormat::f16 && options.shard.alone();
}

void Cache::use_columns(offload::ColumnFormat columns, offload::Arena& arena) {
  if (columns == options_.columns) return;
  if (!remakes_columns(options_)) {
    throw std::logic_error("Cache: columns are made anew of 16-bit rows of a cache alone");
  }
  commit();  // no block is on its way then
  give_back();
  offload::StoreShape shape = store_.shape();
  shape.columns = columns;
  offload::Store made(arena, shape);
  const int kv_heads = shape.kv_heads, width = 2 * shape.head_dim;
  const offload::BlockLayout& layout = made.layout();
  // A layer's blocks are made beside the arena and take the place of its old ones, each of which leaves room for one.
  const bool in_turn = layout.block_bytes <= store_.layout().block_bytes && !store_.shares_blocks();
  std::size_t most_blocks = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    most_blocks = std::max(most_blocks, store_.layer(layer).blocks.size());
  }
  std::vector<std::byte> space(most_blocks * layout.block_bytes);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const offload::LayerView view = store_.layer(layer);
    const std::size_t count = view.blocks.size();
    const std::int64_t tokens = view.tokens;
    std::ranges::fill(space, std::byte{0});
    const auto tokens_of = [&](std::size_t block) {
      const std::int64_t first = static_cast<std::int64_t>(block) * shape.block_tokens;
      return static_cast<int>(std::min<std::int64_t>(shape.block_tokens, tokens - first));
    };
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* const block = space.data() + i * layout.block_bytes;
      backend_->threads().parallel_for(kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t head = begin; head < end; ++head) {
          const f16* const rows = offload::f16_row(*view.layout, view.blocks[i], static_cast<int>(head), 0);
          offload::fill_block(layout, block, static_cast<int>(head), rows, width, tokens_of(i));
        }
      });
    }
    if (in_turn) store_.clear(layer);  // `view` is not read any more
    std::vector<offload::BlockWriter> blocks = made.start_blocks(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(blocks[i].data(), space.data() + i * layout.block_bytes, layout.block_bytes);
      made.commit(layer, std::move(blocks[i]), tokens_of(i));
    }
  }
  store_ = std::move(made);
  options_.columns = columns;
}

}  // namespace hayloft::runtime
