#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <new>

#include "offload/error.h"
#include "offload/snapshot/format.h"
#include "offload/snapshot/snapshot.h"

namespace hayloft::offload {
namespace {

class Digest {
 public:
  Digest() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void add(const void* data, std::uint64_t bytes) {
    if (bytes > 0) XXH3_128bits_update(state_.get(), data, bytes);
  }
  void add(std::int64_t number) { add(&number, sizeof number); }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// The first `tokens` tokens of one head of a block.
void add_head(Digest& digest, const BlockLayout& layout, const std::byte* block, int head, std::uint64_t tokens) {
  const auto B = static_cast<std::uint64_t>(layout.block_tokens);
  const int runs = traits_of(layout.columns).planes;  // of a column
  const std::uint64_t run_bytes = layout.column_bytes / static_cast<unsigned>(runs);
  const std::uint64_t used_bytes = (tokens * run_bytes + B - 1) / B;
  const auto group = static_cast<std::uint64_t>(tokens_per_scale(layout.columns, layout.block_tokens));
  const std::uint64_t scale_bytes = (tokens + group - 1) / group * (layout.scale_bytes * group / B);
  digest.add(layout.row_data(block, head), tokens * layout.row_bytes);
  for (int c = 0; c < layout.head_dim; ++c) {
    for (int run = 0; run < runs; ++run) {
      digest.add(layout.column(block, head, c) + static_cast<unsigned>(run) * run_bytes, used_bytes);
    }
  }
  for (int c = 0; c < layout.head_dim; ++c) digest.add(layout.scales(block, head, c), scale_bytes);
  if (layout.row_format != RowFormat::f16) {
    const auto together = static_cast<std::uint64_t>(tokens_per_range(layout.block_tokens));
    const std::uint64_t components = (tokens + together - 1) / together * static_cast<unsigned>(layout.head_dim);
    digest.add(channel_ranges(layout, block, head, 0), components * sizeof(ChannelRange));
  }
  digest.add(layout.value_sum(block, head), static_cast<std::uint64_t>(layout.head_dim) * sizeof(float));
}

}  // namespace

std::string content_digest(std::span<const std::int32_t> tokens, std::span<const LayerView> layers,
                           std::span<const TailImage> tails, const SnapshotProgress& progress) {
  std::uint64_t total = 0;
  for (const LayerView& layer : layers) total += layer.blocks.size() * layer.layout->block_bytes;
  std::uint64_t done = 0;

  // Every list is preceded by its length, so that nothing can move from one to the next unseen.
  Digest digest;
  digest.add(static_cast<std::int64_t>(tokens.size()));
  digest.add(tokens.data(), tokens.size_bytes());
  digest.add(static_cast<std::int64_t>(layers.size()));
  for (const LayerView& layer : layers) {
    const BlockLayout& layout = *layer.layout;
    for (const std::int64_t number :
         {std::int64_t{layout.kv_heads}, std::int64_t{layout.head_dim}, std::int64_t{layout.block_tokens},
          static_cast<std::int64_t>(format_number(layout.columns, layout.row_format)), layer.tokens}) {
      digest.add(number);
    }
    for (std::size_t i = 0; i < layer.blocks.size(); ++i) {
      const std::int64_t before = static_cast<std::int64_t>(i) * layout.block_tokens;
      const auto count = static_cast<std::uint64_t>(std::min<std::int64_t>(layout.block_tokens, layer.tokens - before));
      for (int head = 0; head < layout.kv_heads; ++head) add_head(digest, layout, layer.blocks[i], head, count);
      done += layout.block_bytes;
      if (progress) progress(done, total);
    }
    digest.add(layer.value_sum.data(), layer.value_sum.size_bytes());
  }
  digest.add(static_cast<std::int64_t>(tails.size()));
  for (const TailImage& tail : tails) {
    digest.add(tail.position);
    digest.add(tail.tokens);
    digest.add(tail.rows.data(), tail.rows.size_bytes());
    digest.add(tail.state.data(), tail.state.size_bytes());
  }
  return digest.hex();
}

}  // namespace hayloft::offload
