#include "runtime/machine/noise_store.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace hayloft::runtime::plan {

std::vector<float> normal_noise(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& x : values) x = distribution(random);
  return values;
}

NoiseMemory::NoiseMemory(offload::Extent memory, const offload::Threads& threads) : memory_(std::move(memory)) {
  const std::vector<float> numbers = normal_noise(1 << 16, 1);
  numbers_.resize(numbers.size());
  std::transform(numbers.begin(), numbers.end(), numbers_.begin(), [](float x) { return to_f16(x); });
  constexpr std::uint64_t piece = std::uint64_t{1} << 20;
  constexpr std::size_t run = 64;  // every 64 numbers are from another place in the noise
  const auto pieces = static_cast<std::int64_t>((bytes() + piece - 1) / piece);
  threads.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::minstd_rand random(static_cast<std::uint32_t>(i) + 1);
      const std::uint64_t from = static_cast<std::uint64_t>(i) * piece;
      const std::uint64_t to = std::min(from + piece, bytes());
      for (std::uint64_t at = from; at < to; at += run * sizeof(f16)) {
        std::memcpy(data() + at, numbers_.data() + random() % (numbers_.size() - run), run * sizeof(f16));
      }
    }
  });
}

NoiseStore::NoiseStore(const NoiseMemory& memory, std::uint64_t footprint, int parts, int head_dim,
                       offload::ColumnFormat format, const offload::Threads& threads)
    : parts_(static_cast<std::size_t>(parts)),
      layout_({1, kv_heads, head_dim, 4096, format}),
      sums_(static_cast<std::size_t>(kv_heads * head_dim)),
      spread_(sums_.size(), 1.0f) {
  for (std::uint64_t at = 0; at + layout_.block_bytes <= footprint; at += layout_.block_bytes) {
    writable_.push_back(memory.data() + at);
  }
  blocks_.assign(writable_.begin(), writable_.end());
  if (layout_.scale_bytes > 0) set_scales(threads);
}

gpu::CacheView NoiseStore::view(std::size_t first_block, std::size_t blocks) const {
  gpu::CacheView cache;
  cache.kv_heads = kv_heads;
  cache.head_dim = layout_.head_dim;
  cache.store.layout = &layout_;
  cache.store.blocks = std::span(blocks_).subspan(first_block, blocks);
  cache.store.tokens = static_cast<std::int64_t>(blocks) * layout_.block_tokens;
  cache.store.value_sum = sums_;
  if (in_planes(layout_.columns)) cache.store.spread = spread_;
  cache.tail.position = cache.store.tokens;
  return cache;
}

gpu::CacheView NoiseStore::slice(int turn) const {
  const std::size_t part = std::max<std::size_t>(1, blocks_.size() / parts_);
  return view(static_cast<std::size_t>(turn) % (blocks_.size() / part) * part, part);
}

void NoiseStore::set_scales(const offload::Threads& threads) {
  threads.parallel_for(static_cast<std::int64_t>(writable_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      for (int head = 0; head < kv_heads; ++head) {
        std::byte* const at = writable_[static_cast<std::size_t>(block)] +
                              static_cast<std::uint64_t>(head) * layout_.head_bytes + layout_.scales_offset;
        std::fill_n(reinterpret_cast<f16*>(at),
                    static_cast<std::uint64_t>(layout_.head_dim) * layout_.scale_bytes / sizeof(f16),
                    to_f16(1.0f / 64));
      }
    }
  });
}

}  // namespace hayloft::runtime::plan
