#include "offload/store/store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "offload/error.h"
#include "offload/store/planes.h"

namespace hayloft::offload {

namespace {

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

void round_to(const std::vector<double>& exact, std::vector<float>& rounded) {
  std::transform(exact.begin(), exact.end(), rounded.begin(), [](double x) { return static_cast<float>(x); });
}

}  // namespace

Store::Store(Arena& arena, const StoreShape& shape)
    : arena_(&arena), shape_(shape), layout_(std::make_shared<BlockLayout>(shape)) {
  layers_.assign(static_cast<std::size_t>(shape.layers), empty_layer());
}

Store::Layer Store::empty_layer() const {
  const std::size_t sums = static_cast<std::size_t>(shape_.kv_heads) * static_cast<std::size_t>(shape_.head_dim);
  Layer layer;
  layer.exact_sum.assign(sums, 0.0);
  layer.value_sum.assign(sums, 0.0f);
  if (!in_planes(shape_.columns)) return layer;
  layer.exact_spread.assign(sums, 0.0);
  layer.spread.assign(sums, 0.0f);
  return layer;
}

Store::Store(Arena& arena, const StoreShape& shape, const std::shared_ptr<const void>& owner,
             std::vector<AdoptedLayer> layers)
    : Store(arena, shape) {
  if (layers.size() != layers_.size()) {
    throw std::logic_error(fmt::format("Store: {} adopted layers for a store of {}", layers.size(), layers_.size()));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    AdoptedLayer& from = layers[i];
    Layer& to = layers_[i];
    const std::int64_t blocks = (from.tokens + shape.block_tokens - 1) / shape.block_tokens;
    if (from.tokens < 0 || from.blocks.size() != static_cast<std::size_t>(blocks) ||
        from.value_sum.size() != to.exact_sum.size() || from.spread.size() != to.exact_spread.size()) {
      throw std::logic_error(
          fmt::format("Store: layer {} adopts {} blocks, {} value sums and a spread of {} for {} tokens", i,
                      from.blocks.size(), from.value_sum.size(), from.spread.size(), from.tokens));
    }
    to.owners.assign(from.blocks.size(), owner);
    to.serials.resize(from.blocks.size());
    std::generate(to.serials.begin(), to.serials.end(), next_serial);
    to.adopted = from.blocks.size();
    to.blocks = std::move(from.blocks);
    to.tokens = from.tokens;
    to.exact_sum = std::move(from.value_sum);
    to.exact_spread = std::move(from.spread);
    round_to(to.exact_sum, to.value_sum);
    round_to(to.exact_spread, to.spread);
  }
}

Store Store::fork() const {
  return *this;
}

std::size_t Store::index(int layer) const {
  if (layer < 0 || static_cast<std::size_t>(layer) >= layers_.size()) {
    throw std::logic_error(fmt::format("Store: layer {} of a store of {}", layer, layers_.size()));
  }
  return static_cast<std::size_t>(layer);
}

LayerView Store::layer(int layer) const {
  const Layer& of = layers_[index(layer)];
  return {layout_.get(), of.blocks, of.tokens, of.value_sum, of.spread, of.serials};
}

std::int64_t Store::tokens(int layer) const {
  return layers_[index(layer)].tokens;
}

std::span<const double> Store::exact_value_sum(int layer) const {
  return layers_[index(layer)].exact_sum;
}

std::span<const double> Store::exact_spread(int layer) const {
  return layers_[index(layer)].exact_spread;
}

BlockWriter Store::start_block() {
  return std::move(start_blocks(1).front());
}

std::vector<BlockWriter> Store::start_blocks(std::size_t count) {
  if (layout_ == nullptr) throw std::logic_error("Store::start_blocks: the store was moved from");
  std::vector<BlockWriter> blocks(count);
  std::vector<Extent> memory = arena_->allocate(layout_->block_bytes, count);
  for (std::size_t i = 0; i < count; ++i) blocks[i].memory_ = std::move(memory[i]);
  return blocks;
}

void Store::commit(int layer, BlockWriter block, int tokens) {
  Layer& to = layers_[index(layer)];
  if (!block.memory_ || block.memory_.bytes() < layout_->block_bytes) {
    throw std::logic_error("Store::commit: the block was not started by a store of this shape");
  }
  if (tokens < 1 || tokens > shape_.block_tokens) {
    throw std::logic_error(fmt::format("Store::commit: {} tokens in a block of {}", tokens, shape_.block_tokens));
  }
  if (to.tokens % shape_.block_tokens != 0) {
    throw std::logic_error(fmt::format("Store::commit: layer {} is sealed at {} tokens", layer, to.tokens));
  }

  // All that can throw comes first, so that a failure leaves the layer as it was.
  const std::byte* const data = block.data();
  auto owner = std::make_shared<const Extent>(std::move(block.memory_));
  if (to.owners.size() == to.owners.capacity()) to.owners.reserve(2 * to.owners.size() + 1);
  if (to.serials.size() == to.serials.capacity()) to.serials.reserve(2 * to.serials.size() + 1);
  to.blocks.push_back(data);
  to.owners.push_back(std::move(owner));
  to.serials.push_back(next_serial());
  to.tokens += tokens;

  for (int head = 0; head < shape_.kv_heads; ++head) {
    const float* const sum = layout_->value_sum(data, head);
    const std::size_t first = static_cast<std::size_t>(head) * static_cast<std::size_t>(shape_.head_dim);
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape_.head_dim); ++i) {
      to.exact_sum[first + i] += static_cast<double>(sum[i]);
    }
  }
  round_to(to.exact_sum, to.value_sum);
  if (to.spread.empty()) return;
  add_spread(*layout_, data, to.exact_spread.data());
  round_to(to.exact_spread, to.spread);
}

void Store::copy_mapped_blocks(const Threads& threads) {
  std::vector<std::shared_ptr<const Extent>> copies;
  std::vector<const std::byte*> originals;
  for (const Layer& layer : layers_) {
    const std::size_t before = copies.size();
    for (Extent& memory : arena_->allocate(layout_->block_bytes, layer.adopted)) {
      originals.push_back(layer.blocks[copies.size() - before]);
      copies.push_back(std::make_shared<const Extent>(std::move(memory)));
    }
  }
  threads.parallel_for(static_cast<std::int64_t>(copies.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      std::memcpy(copies[at]->data(), originals[at], layout_->block_bytes);
    }
  });
  auto copy = copies.begin();
  for (Layer& layer : layers_) {
    for (std::size_t i = 0; i < layer.adopted; ++i, ++copy) {
      layer.blocks[i] = (*copy)->data();
      layer.owners[i] = std::move(*copy);
      layer.serials[i] = next_serial();
    }
    layer.adopted = 0;
  }
}

void Store::clear(int layer) {
  layers_[index(layer)] = empty_layer();
}

bool Store::shares_blocks() const {
  return std::ranges::any_of(layers_, [](const Layer& layer) {
    return layer.adopted > 0 ||
           std::ranges::any_of(layer.owners, [](const auto& owner) { return owner.use_count() > 1; });
  });
}

std::uint64_t Store::bytes() const {
  std::uint64_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.blocks.size() * layout_->block_bytes;
  return bytes;
}

}  // namespace hayloft::offload
