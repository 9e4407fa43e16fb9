#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "index/scan/search.h"
#include "offload/store/columns.h"
#include "offload/store/layout.h"
#include "offload/store/planes.h"
#include "offload/store/store.h"

namespace hayloft::testing {

// One layer of a store, made by hand: keys come from a function, values are zero.
class HandmadeLayer {
 public:
  using Key = std::function<float(int head, std::int64_t position, int component)>;

  HandmadeLayer(const offload::StoreShape& shape, std::int64_t tokens, const Key& key)
      : layout_(shape), value_sum_(static_cast<std::size_t>(shape.kv_heads * shape.head_dim)) {
    const std::int64_t block = shape.block_tokens;
    for (std::int64_t start = 0; start < tokens; start += block) {
      // Blocks start at multiples of 64, as the arena's do.
      auto& memory = memory_.emplace_back(layout_.block_bytes / sizeof(Line) + 1);
      auto* base = reinterpret_cast<std::byte*>(memory.data());
      const auto count = static_cast<int>(std::min(tokens - start, block));
      std::vector<f16> rows(static_cast<std::size_t>(count * 2 * shape.head_dim));
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (int t = 0; t < count; ++t) {
          for (int c = 0; c < shape.head_dim; ++c) {
            rows[static_cast<std::size_t>(t * 2 * shape.head_dim + c)] = to_f16(key(head, start + t, c));
          }
        }
        offload::fill_block(layout_, base, head, rows.data(), 2 * shape.head_dim, count);
      }
      blocks_.push_back(base);
    }
    view_.layout = &layout_;
    view_.blocks = blocks_;
    view_.tokens = tokens;
    view_.value_sum = value_sum_;
    if (!in_planes(shape.columns)) return;
    std::vector<double> spread(value_sum_.size());
    for (const std::byte* base : blocks_) offload::add_spread(layout_, base, spread.data());
    spread_.assign(spread.begin(), spread.end());
    view_.spread = spread_;
  }
  HandmadeLayer(const HandmadeLayer&) = delete;
  HandmadeLayer& operator=(const HandmadeLayer&) = delete;

  const offload::LayerView& view() const { return view_; }

  // The key as the columns have it, of planes the first `planes`.
  float column_key(int head, std::int64_t position, int component, int planes = offload::plane_count) const {
    const std::byte* block = blocks_[static_cast<std::size_t>(view_.block_of(position))];
    const auto slot = static_cast<int>(position % layout_.block_tokens);
    if (!in_planes(layout_.columns)) return offload::column_key(layout_, block, head, component, slot);
    const std::byte* column = layout_.column(block, head, component);
    return offload::plane_key(offload::code_at(layout_, column, slot), planes, range(head, position, component));
  }
  int code(int head, std::int64_t position, int component) const {
    const std::byte* block = blocks_[static_cast<std::size_t>(view_.block_of(position))];
    return offload::code_at(layout_, layout_.column(block, head, component),
                            static_cast<int>(position % layout_.block_tokens));
  }
  offload::PlaneRange range(int head, std::int64_t position, int component) const {
    const std::byte* block = blocks_[static_cast<std::size_t>(view_.block_of(position))];
    const int group = offload::tokens_per_scale(layout_.columns, layout_.block_tokens);
    return offload::plane_ranges(layout_, block, head, component)[position % layout_.block_tokens / group];
  }
  f16 scale(int head, std::int64_t position, int component) const {
    const std::byte* block = blocks_[static_cast<std::size_t>(view_.block_of(position))];
    const auto slot = static_cast<int>(position % layout_.block_tokens);
    return layout_.scales(block, head, component)[slot / offload::BlockLayout::scale_tokens];
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  offload::BlockLayout layout_;
  std::vector<std::vector<Line>> memory_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> value_sum_;
  std::vector<float> spread_;
  offload::LayerView view_;
};

// Normally distributed keys, the same for the same seed whatever the block size.
inline HandmadeLayer::Key normal_keys(unsigned seed, float scale = 1.0f) {
  return [=](int head, std::int64_t position, int component) {
    std::minstd_rand engine(seed + static_cast<unsigned>(head * 7919 + position * 256 + component + 1) * 2654435761u);
    engine.discard(2);
    return scale * std::normal_distribution<float>()(engine);
  };
}

// Gives keys of a bell of unit variance, likewise, as sums of four numbers drawn evenly: in a fraction of the time.
inline HandmadeLayer::Key bell_keys(unsigned seed) {
  return [=](int head, std::int64_t position, int component) {
    auto mixed = (std::uint64_t{seed} << 32) + static_cast<std::uint64_t>(head * 7919 + position * 256 + component + 1);
    for (const int shift : {30, 27}) mixed = (mixed ^ (mixed >> shift)) * 0xbf58476d1ce4e5b9;  // as SplitMix64 does
    mixed ^= mixed >> 31;
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>((mixed >> (16 * i)) & 0xffff);
    return std::sqrt(3.0f) * (static_cast<float>(sum) / 65536.0f - 2.0f);
  };
}

}  // namespace hayloft::testing
