#include "runtime/cache/cache_size.h"

#include <algorithm>
#include <map>

#include "offload/error.h"
#include "offload/host/arena.h"

namespace hayloft::runtime {
namespace {

// Returns the bytes of tails that have slots_of(window) slots, and of states.
template <class SlotsOf>
std::uint64_t bytes_of_slots(const ModelConfig& config, const SlotsOf& slots_of) {
  std::map<std::int64_t, std::int64_t> capacity;  // by window: layers of a kind are alike
  std::int64_t elements = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    if (config.kind(layer) == LayerKind::recurrent) continue;
    const std::int64_t window = config.sliding_window[static_cast<std::size_t>(layer)];
    const auto [known, fresh] = capacity.try_emplace(window);
    if (fresh) known->second = slots_of(window);
    elements += known->second * 2 * config.heads(layer).width();
  }
  return static_cast<std::uint64_t>(elements) * sizeof(f16) + state_bytes(config);
}

}  // namespace

std::uint64_t recurrent_bytes(const gpu::DeltaShape& shape) {
  return static_cast<std::uint64_t>(shape.kept_floats()) * sizeof(float);
}

std::uint64_t state_bytes(const ModelConfig& config) {
  return 2 * static_cast<std::uint64_t>(config.count(LayerKind::recurrent)) * recurrent_bytes(config.delta);
}

offload::StoreShape store_shape(const ModelConfig& config, const CacheOptions& options) {
  return {config.global_layers(), config.kv_heads, config.head_dim,
          options.block_tokens,   options.columns, options.rows};
}

std::uint64_t host_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens) {
  const offload::BlockLayout layout(store_shape(config, options));
  const std::int64_t blocks =
      options.shard.own_blocks(std::max<std::int64_t>(0, tokens - options.window) / options.block_tokens);
  const std::uint64_t aligned =
      (layout.block_bytes + offload::Arena::alignment - 1) / offload::Arena::alignment * offload::Arena::alignment;
  return aligned * static_cast<std::uint64_t>(blocks) * static_cast<std::uint64_t>(config.global_layers());
}

void TailSlots::drop(std::int64_t oldest) {
  first += oldest;
  position += oldest;
  tokens -= oldest;
}

void TailSlots::forget() {
  if (window > 0 && tokens > window) drop(tokens - window);
}

std::int64_t TailSlots::capacity_for(int T, const CacheOptions& options) const {
  // Twice what is live, so that rows seldom move while the tail grows, up to what it will ever hold besides the tokens
  // being appended: a block and the window in a global layer, where a block leaves before there is no room and what is
  // left moves once per block. A sliding window loses one token with each that it gains, and moves once per quarter.
  const std::int64_t needed = tokens + T;
  const std::int64_t most =
      window > 0 ? window + std::max<std::int64_t>(T, (window + 3) / 4) : options.block_tokens + options.window + T;
  return std::max({capacity, needed, std::min(2 * needed, most)});
}

std::int64_t TailSlots::capacity_kept(const CacheOptions& options) const {
  // Memory that decoding will need is kept where the tail has been that long; a little more stays where it is.
  TailSlots decoding = *this;
  decoding.capacity = 0;
  if (position > 0) decoding.tokens = window > 0 ? window : options.block_tokens + options.window;
  const std::int64_t least = decoding.capacity_for(1, options);
  return capacity - least > capacity / 8 ? std::max(least, tokens) : capacity;
}

std::int64_t TailSlots::full_blocks(std::int64_t T, const CacheOptions& options) const {
  if (window > 0) return 0;
  return std::max<std::int64_t>(0, tokens + T - options.window) / options.block_tokens;
}

TailSlots tail_after(const CacheOptions& options, std::int64_t window, std::int64_t tokens, int chunk) {
  TailSlots tail;
  tail.window = window;
  for (std::int64_t done = 0; done < tokens; done += chunk) {
    const int T = static_cast<int>(std::min<std::int64_t>(chunk, tokens - done));
    tail.forget();
    if (!tail.has_room(T)) {
      tail.capacity = tail.capacity_for(T, options);
      tail.first = 0;
    }
    const std::int64_t full = tail.full_blocks(T, options);
    tail.tokens += T;
    tail.drop(full * options.block_tokens);
  }
  return tail;
}

std::uint64_t least_saved_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens,
                                int chunk) {
  const std::int64_t whole = tokens / chunk * chunk;
  // A context of layers that keep states has what is behind the last chunk as ids alone.
  const std::int64_t with_rows = config.count(LayerKind::recurrent) > 0 ? whole : tokens;
  const std::int64_t blocks = std::max<std::int64_t>(0, whole - options.window) / options.block_tokens;
  const auto rows = static_cast<std::uint64_t>(with_rows - blocks * options.block_tokens) *
                    static_cast<std::uint64_t>(config.global_layers()) * static_cast<std::uint64_t>(config.kv_heads);
  return static_cast<std::uint64_t>(tokens) * sizeof(std::int32_t) + host_bytes(config, options, whole) +
         rows * 2 * static_cast<std::uint64_t>(config.head_dim) * sizeof(f16);
}

std::uint64_t tail_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens, int chunk) {
  return bytes_of_slots(config,
                        [&](std::int64_t window) { return tail_after(options, window, tokens, chunk).capacity; });
}

std::uint64_t kept_tail_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens, int chunk) {
  return bytes_of_slots(config, [&](std::int64_t window) {
    TailSlots tail = tail_after(options, window, tokens, chunk);
    tail.forget();
    return tail.capacity_kept(options);
  });
}

}  // namespace hayloft::runtime
