#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "offload/store/layout.h"
#include "offload/store/shard.h"
#include "offload/store/store.h"
#include "runtime/checkpoint/config.h"

// Says how the K/V of a sequence are kept, and the memory that takes, before any of it is there: what the cache itself
// and the planner go by.
namespace hayloft::runtime {

// Says how the K/V of a sequence are kept.
struct CacheOptions {
  int block_tokens = 4096;  // B
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  std::int64_t window = 256;  // tokens that stay in the tail even when a whole block is full
  bool copy_saved = false;  // the blocks of a saved context into the arena, instead of using them where they are mapped
  offload::RowFormat rows = offload::RowFormat::f16;  // of the store; the tail's are f16
  offload::Shard shard = {};  // whose blocks the store holds, of a context that ranks hold together
};

// Returns whether the columns of such a cache can be made anew of its rows (Cache::use_columns): of 16-bit rows of all
// tokens.
bool remakes_columns(const CacheOptions& options);

offload::StoreShape store_shape(const ModelConfig& config, const CacheOptions& options);  // of its global layers

// Host memory that the store takes for a sequence of `tokens`, on this rank.
std::uint64_t host_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens);

// Bytes that a file takes at least to hold so many tokens, read `chunk` at a time, on this rank: their ids, the blocks
// and, of global layers, the rows that are in none.
std::uint64_t least_saved_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens, int chunk);

// The slots of one layer's tail, without the memory behind them: how it grows, forgets and spills.
struct TailSlots {
  std::int64_t capacity = 0;
  std::int64_t first = 0;
  std::int64_t tokens = 0;
  std::int64_t position = 0;
  std::int64_t window = 0;  // sliding-window layers: how many tokens stay; 0 for global layers

  void drop(std::int64_t oldest);  // `oldest` tokens have left the tail
  void forget();                   // what has left a sliding window
  bool has_room(int T) const { return first + tokens + T <= capacity; }
  std::int64_t capacity_for(int T, const CacheOptions& options) const;          // when there is no room
  std::int64_t capacity_kept(const CacheOptions& options) const;                // once a prompt has been read
  std::int64_t full_blocks(std::int64_t T, const CacheOptions& options) const;  // that T more tokens would fill
};

// Returns the bytes that one recurrent layer keeps of a sequence; a cache has it twice, before and behind the tokens
// that are computed.
std::uint64_t recurrent_bytes(const gpu::DeltaShape& shape);
std::uint64_t state_bytes(const ModelConfig& config);  // what a cache has of all layers

// Returns what the tail of one layer (window 0: global) has become when `tokens` have been appended, `chunk` at a time.
TailSlots tail_after(const CacheOptions& options, std::int64_t window, std::int64_t tokens, int chunk);

// Device memory that the tails and the states take then; equals Cache::device_bytes().
std::uint64_t tail_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens, int chunk);
// Returns what they keep of it once the prompt has been read (Cache::shrink()).
std::uint64_t kept_tail_bytes(const ModelConfig& config, const CacheOptions& options, std::int64_t tokens, int chunk);

}  // namespace hayloft::runtime
