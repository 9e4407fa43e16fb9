#include "runtime/attention/methods/derived_state.h"

#include <algorithm>

namespace hayloft::runtime {
namespace {

// Entries of a block: those of this many tokens, the store's own block unless a user chose another. Then forks have
// nothing to copy.
constexpr int block_tokens = 4096;
constexpr std::int64_t tokens_per_report = 65536;

int block_entries(int tokens_per_entry) {
  return std::max(16, block_tokens / tokens_per_entry);
}

}  // namespace

DerivedState::DerivedState(const AttentionShape& shape, int columns, int tokens_per_entry)
    : tokens_per_entry_(tokens_per_entry) {
  for (int layer = 0; layer < shape.layers; ++layer) {
    columns_.emplace_back(shape.kv_heads, columns, block_entries(tokens_per_entry));
  }
}

void DerivedState::sync_with_cache(std::span<const gpu::CacheView> layers, const StateProgress& progress) {
  const auto covered = [&](const gpu::CacheView& cache) {
    return columns_[static_cast<std::size_t>(cache.layer)].size() * tokens_per_entry_;
  };
  const auto coverable = [&](const gpu::CacheView& cache) {
    return cache.store.tokens / tokens_per_entry_ * tokens_per_entry_;
  };
  std::int64_t total = 0;
  for (const gpu::CacheView& cache : layers) total += coverable(cache) - covered(cache);
  std::int64_t done = 0;
  for (const gpu::CacheView& cache : layers) {
    while (covered(cache) < coverable(cache)) {
      const std::int64_t before = covered(cache);
      offload::LayerView part = cache.store;
      part.tokens = std::min(coverable(cache), before + tokens_per_report);
      extend(cache.layer, part, columns_[static_cast<std::size_t>(cache.layer)]);
      done += covered(cache) - before;
      if (progress) progress(done, total);
    }
  }
}

std::uint64_t DerivedState::bytes() const {
  std::uint64_t bytes = 0;
  for (const index::DerivedColumns& columns : columns_) bytes += columns.bytes();
  return bytes;
}

std::uint64_t DerivedState::bytes_of(const AttentionShape& shape, int columns, int tokens_per_entry,
                                     std::int64_t tokens) {
  const std::int64_t block = block_entries(tokens_per_entry);
  const std::int64_t blocks = (tokens / tokens_per_entry + block - 1) / block;
  return static_cast<std::uint64_t>(blocks * block * shape.layers * shape.kv_heads * columns) * sizeof(f16);
}

}  // namespace hayloft::runtime
