#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "offload/snapshot/snapshot.h"
#include "offload/store/store.h"
#include "runtime/cache/cache_size.h"
#include "runtime/cache/spills.h"
#include "runtime/checkpoint/config.h"

namespace hayloft::runtime {

// The K/V of one sequence: for each global layer blocks in the store and a tail on the device; for each sliding-window
// layer its window on the device and nothing else. And the state of each recurrent layer, on the device.
//
// Adding tokens is in two steps, so that an error halfway through the layers loses nothing: append() writes behind the
// live tokens of a layer and starts to spill the blocks that they fill, while later layers are computed; commit() waits
// for the spilled blocks and makes what has been appended live, in all layers at once. What has been appended and not
// committed is dropped by abandon(), or by the next append() to the layer.
//
// If ranks hold a context together (CacheOptions::shard), each has all of its tokens in its tail first, and of the
// blocks that they fill keeps its own ones: the others' it forgets, but for the sum of their values. Tails are small,
// and every rank computes the same K and V, so that no token crosses the network to be stored.
//
// Not thread-safe; forks may be used from different threads.
class Cache {
 public:
  // Throws Error on options out of range.
  Cache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config, const CacheOptions& options);

  // Makes a cache of what a snapshot holds: its store and the tail of every layer. Throws Error when they do not fit
  // the model: other heads, a sliding window where there should be none.
  Cache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config, const CacheOptions& options,
        const offload::Snapshot& snapshot);

  // Shares the blocks, copies the tails.
  Cache fork() const;
  // The same of the first `tokens` alone: to the bit what a cache is that has had no others. From rewinds_to() on;
  // fewer are a programmer's mistake.
  Cache fork_at(std::int64_t tokens) const;
  // Returns how many of the first tokens a fork may be cut to at least: those whose newest rows are still in the tails.
  std::int64_t rewinds_to() const;

  // The tail of every layer, copied to the host, for a snapshot.
  std::vector<offload::SnapshotTail> tails() const;
  offload::SnapshotTail tail(int layer) const;  // of one of them
  const offload::Store& store() const { return store_; }

  // If ranks hold the context together: f64 [global layers][Hkv][d] of columns in planes, else empty: the spread of K
  // over the blocks that this rank has (LayerView::spread), and over those of all, which a cache from a snapshot has to
  // be told.
  std::vector<double> own_spread() const;
  void set_spread(std::span<const double> of_all);

  // Includes what has been appended and not yet committed.
  gpu::CacheView view(int layer) const;

  std::vector<gpu::CacheView> global_views() const;  // of the global layers, in order

  // Writes k, v (f32 [T][Hkv][d] of the layer, device) behind the layer's live tokens, making room first.
  void append(int layer, const float* k, const float* v, int T);
  // The same by Backend::enter(), which makes of these heads what attention takes.
  void enter(int layer, const gpu::NewHeads& heads);
  // The state of a recurrent layer before and behind T more tokens, for the caller to make the latter of the former.
  gpu::DeltaState advance(int layer, int T);
  void commit();
  // The tails give back what only a prompt's chunks needed, as long as the device has room to move them; decoding goes
  // on without asking for more, once the context is longer than a block.
  void shrink();
  void abandon() noexcept;  // waits for the blocks on their way and gives their memory back

  // From now on until commit() or abandon(), what is appended may be taken back before it is committed: no block is
  // spilled until keep() has said how many tokens stay, of every layer the first ones; there is at least one. Of a
  // recurrent layer advance_again() is called before, and the state behind so many made anew, where fewer stay.
  void hold_pending() { held_ = true; }
  bool holds_pending() const { return held_; }
  gpu::DeltaState advance_again(int layer, int kept);
  void keep(int kept);
  // Counts the tokens that may be appended so that only the last of them can fill a block: what is read of the others'
  // positions is in the tail until all have been read.
  std::int64_t tokens_up_to_spill() const;

  // Everything that is committed from now on is drafted: end_drafts() takes all of it back. Nothing is spilled until
  // then, and no sliding window forgets a token. The cache is not forked in between.
  void begin_drafts() { drafting_ = true; }
  void end_drafts() noexcept;

  // Sets aside host memory for the blocks that `tokens` more will fill, those of a layer behind one another, where the
  // budget has room for all of them; give_back() returns what has not been used. Layers that take turns would lie mixed
  // with each other otherwise, which costs a device that copies columns a copy for each block.
  void reserve(std::int64_t tokens);
  void give_back() noexcept { reserved_.clear(); }

  // Makes the columns of what has been committed anew in another format, to the bit those of a cache that had it from
  // the beginning; forks keep theirs. Rows in f16 of a cache alone: anything else is a programmer's mistake. Where no
  // fork shares its blocks, columns that are no larger take the place of the others, and the arena needs no room
  // besides. Otherwise throws Error when the arena's budget has none for both stores at once; nothing has changed then.
  // Loses some layers where the system itself refuses memory half-way (std::bad_alloc): the cache may then only be
  // destroyed.
  void use_columns(offload::ColumnFormat columns, offload::Arena& arena);

  // For going layer by layer, where each is appended to and committed many times before the next. An error leaves the
  // layers apart, so it is done to a fork, which then takes the place of what it was forked from.
  void replace_by(Cache grown);

  // A global layer's next `tokens` stay in its tail, in memory of the device made for them now, until flush_layer()
  // spills what commit() would have spilled and gives that memory back: a layer's K and V are then read where they were
  // made. Throws Error when the device has not got it; layer_bytes_on_device() says what it takes.
  void keep_layer_on_device(int layer, std::int64_t tokens);
  void flush_layer(int layer);
  std::uint64_t layer_bytes_on_device(int layer, std::int64_t tokens) const;

  // Committed ones; without a layer, those that are in all of them.
  std::int64_t tokens() const { return tokens(static_cast<int>(tails_.size()) - 1); }
  std::int64_t tokens(int layer) const {
    const Tail& tail = tails_[static_cast<std::size_t>(layer)];
    return tail.position + tail.tokens;
  }
  // Returns whether it has the layers and heads of such a model.
  bool fits(const ModelConfig& config) const;
  const CacheOptions& options() const { return options_; }
  std::uint64_t host_bytes() const { return store_.bytes(); }
  std::uint64_t device_bytes() const;
  std::uint64_t spilled_bytes() const { return spilled_bytes_; }  // by this cache itself, rows and columns

 private:
  struct Tail : TailSlots {
    gpu::Buffer rows;
    LayerHeads heads;      // of the layer
    int store_layer = -1;  // global layers
    bool kept_on_device = false;
    int pending = 0;          // appended, not committed
    std::int64_t filled = 0;  // blocks that leave with the next commit()
    // [Hkv][d], of V in the blocks of all ranks, in their order, and rounded; empty of a cache alone.
    std::vector<double> exact_sum;
    std::vector<float> value_sum;
    std::vector<float> filled_sums;  // of the blocks that leave, one after the other
    // [Hkv][d], of K in the blocks of all ranks as LayerView::spread; empty of a cache alone, and but for planes.
    std::vector<double> exact_spread;
    std::vector<float> spread;
    std::vector<double> filled_spread;  // of the blocks that leave, all together
    // Recurrent layers, which have no slots; `position` counts their tokens. f32 [DeltaShape::kept_floats()].
    bool recurrent = false;
    gpu::Buffer state;  // of the committed tokens
    gpu::Buffer next;   // behind what is pending
    // Begun by begin_drafts(): the tokens committed since, and a recurrent layer's state before them.
    std::int64_t drafted = 0;
    gpu::Buffer before_drafts;
  };
  Cache(const Cache& other, offload::Store store, std::int64_t tokens);
  // Makes room for T tokens of a layer, which `write` then writes.
  void add(int layer, int T, const std::function<void()>& write);
  // Returns how many heads a layer without a store has, where their shape is another than the store's; else 0.
  int own_heads(const Tail& tail) const;
  void restore_state(Tail& tail, const offload::SnapshotTail& saved, const std::string& file, int layer) const;
  void make_room(Tail& tail, int T);
  void start_spills(int layer);  // of the blocks that the tail fills
  void sum_filled(Tail& tail) const;
  static void take_filled_sums(Tail& tail);
  offload::BlockWriter next_block(int layer);
  void resize(Tail& tail, std::int64_t capacity) const;

  gpu::Backend* backend_;
  CacheOptions options_;
  gpu::DeltaShape delta_;
  offload::Store store_;
  std::vector<Tail> tails_;               // [layers]
  std::vector<gpu::TailOrigin> origins_;  // of the tails' rows: the caches that this one was forked from, and itself
  std::uint64_t spilled_bytes_ = 0;
  bool held_ = false;      // what is pending may be taken back
  bool drafting_ = false;  // and what is committed
  Spills spills_;
  std::vector<std::vector<offload::BlockWriter>> reserved_;  // by layer, the next one last
};

}  // namespace hayloft::runtime
