#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/host/arena.h"
#include "offload/host/threads.h"
#include "offload/store/layout.h"
#include "offload/store/rows.h"

namespace hayloft::offload {

// The view by which a kernel reads one layer: valid until the store it came from appends to that layer or dies.
struct LayerView {
  const BlockLayout* layout = nullptr;
  std::span<const std::byte* const> blocks;  // one base pointer per block
  std::int64_t tokens = 0;                   // held in the blocks; a multiple of B unless the layer is sealed
  std::span<const float> value_sum;          // f32 [Hkv][d], sum of V over all `tokens`
  // f32 [Hkv][d], columns in planes only: sum of the half-widths of the ranges, to which the spread of K in that
  // component is in proportion.
  std::span<const float> spread = {};
  // Tells blocks apart, one number for each: no two blocks of this process ever have the same. Those that forks share
  // are the same block; a copy is another.
  std::span<const std::uint64_t> serials = {};

  int block_of(std::int64_t position) const { return static_cast<int>(position / layout->block_tokens); }
  // The rows of positions [first, first + n), all of one block: f16 [n][2 d], K then V, where they lie if they are
  // f16, else read into `space`, which has room for them.
  const f16* rows(int head, std::int64_t first, std::int64_t n, f16* space) const {
    return read(read_rows, head, first, n, space);
  }
  const f16* row(int head, std::int64_t position, f16* space) const { return rows(head, position, 1, space); }
  // As rows(), but the keys alone are read: V of what is in `space` stays as it is.
  const f16* keys(int head, std::int64_t first, std::int64_t n, f16* space) const {
    return read(read_keys, head, first, n, space);
  }

 private:
  const f16* read(decltype(read_rows)* read_integers, int head, std::int64_t first, std::int64_t n, f16* space) const {
    const std::byte* const block = blocks[static_cast<std::size_t>(block_of(first))];
    const auto slot = static_cast<int>(first & (layout->block_tokens - 1));
    if (layout->row_format == RowFormat::f16) return f16_row(*layout, block, head, slot);
    read_integers(*layout, block, head, slot, static_cast<int>(n), space);
    return space;
  }
};

// A block that is being written: every head's rows, columns, scales and value sum must be filled before commit.
class BlockWriter {
 public:
  std::byte* data() const { return memory_.data(); }  // BlockLayout::block_bytes, zeroed

 private:
  friend class Store;
  Extent memory_;
};

// Blocks that lie in memory of someone else, such as a mapped file, for one layer of a new store.
struct AdoptedLayer {
  std::vector<const std::byte*> blocks;  // in order; all but the last full
  std::int64_t tokens = 0;               // in them; a multiple of B unless the layer is sealed
  std::vector<double> value_sum;         // [Hkv][d], what adding up the blocks' value sums in order gives
  std::vector<double> spread;            // [Hkv][d], the same of add_spread(); empty but for planes
};

// The append-only K/V store: for each (global layer, KV head) a sequence of immutable blocks of B tokens. Stores are
// cheap to fork: a fork shares every block written so far and appends its own. Blocks live as long as any store holds
// them; the arena may be destroyed earlier, and only start_block needs it. Reading is thread-safe; nobody else may use
// a layer while it is appended to, nor fork the store. A layer index out of range, an empty block, a wrong number of
// tokens or a sealed layer is a programmer's mistake: std::logic_error. So is any layer of a store that was moved from.
class Store {
 public:
  // Throws Error on a shape out of range.
  Store(Arena& arena, const StoreShape& shape);

  // A store that begins with blocks it does not copy, nor read. They stay as they are while `owner`, which every block
  // shares, lives; those appended come from the arena. `layers` has one entry per layer of the shape.
  Store(Arena& arena, const StoreShape& shape, const std::shared_ptr<const void>& owner,
        std::vector<AdoptedLayer> layers);
  Store(Store&&) = default;
  Store& operator=(Store&&) = default;

  Store fork() const;  // takes no block memory

  const StoreShape& shape() const { return shape_; }
  const BlockLayout& layout() const { return *layout_; }
  LayerView layer(int layer) const;
  std::int64_t tokens(int layer) const;
  std::span<const double> exact_value_sum(int layer) const;  // [Hkv][d], of which a view has the f32
  std::span<const double> exact_spread(int layer) const;     // likewise

  // Memory for the next block of any layer. Throws Error when the arena's budget is exhausted; the store is then
  // unchanged.
  BlockWriter start_block();
  // As many, all or none, in memory that adjoins as far as it can: for blocks of one layer that come one after the
  // other, of which a device then copies parts of many at a time.
  std::vector<BlockWriter> start_blocks(std::size_t count);

  // Appends a filled block of `tokens` tokens (1..B) to `layer` and adds its value sums. A block of fewer than B tokens
  // seals the layer: appending to it again is a programmer's mistake. A commit that throws changes nothing.
  void commit(int layer, BlockWriter block, int tokens);

  // Copies the blocks that it does not own into the arena, whose listener may have that memory pinned, and lets go of
  // them: they are all read now instead of when they are needed. Throws Error when the arena's budget is exhausted; the
  // store is then unchanged.
  void copy_mapped_blocks(const Threads& threads);

  // Lets go of a layer's blocks; it is as in a new store then. Memory that nobody shares goes back to the arena.
  void clear(int layer);
  bool shares_blocks() const;  // with a fork, or with an owner from whom they were adopted

  std::uint64_t bytes() const;  // of all blocks this store refers to, shared ones included

 private:
  struct Layer {
    std::vector<std::shared_ptr<const void>> owners;  // of the blocks
    std::vector<const std::byte*> blocks;
    std::vector<std::uint64_t> serials;
    std::size_t adopted = 0;  // so many blocks from the first on are someone else's
    std::int64_t tokens = 0;
    std::vector<double> exact_sum;     // [Hkv][d], of the blocks' value sums
    std::vector<float> value_sum;      // exact_sum, rounded once
    std::vector<double> exact_spread;  // [Hkv][d] or empty, likewise
    std::vector<float> spread;
  };
  Store(const Store&) = default;  // what fork() does
  std::size_t index(int layer) const;
  Layer empty_layer() const;

  Arena* arena_;
  StoreShape shape_;
  std::shared_ptr<const BlockLayout> layout_;
  std::vector<Layer> layers_;
};

// Fills one head of a block from token-major rows: copies the rows (quantised as rows.h says), transposes K into the
// columns (quantised as quantise.h and planes.h say), sums V (in double, in token order); columns and sums are those of
// the rows as they are given. The result depends neither on threads nor on the processor, to the bit. `rows` is f16
// [tokens][2 d] with `stride` elements from token to token; it may be the block's own rows where those are f16.
// tokens is 0..B; rows, columns and scales past it stay as they are, zero in a fresh block, but for integer columns the
// last 64 tokens that share a scale are filled up with zeros. Thread-safe for different heads.
void fill_block(const BlockLayout& layout, std::byte* block, int head, const f16* rows, std::int64_t stride,
                int tokens);

}  // namespace hayloft::offload
