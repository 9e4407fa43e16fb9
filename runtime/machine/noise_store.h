#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/backend.h"
#include "offload/half.h"
#include "offload/host/arena.h"
#include "offload/host/threads.h"
#include "offload/store/layout.h"

// Memory full of noise that is read as if it were the store of a layer.
namespace hayloft::runtime::plan {

std::vector<float> normal_noise(std::size_t count, std::uint32_t seed);

// Normal numbers in f16 everywhere: whatever part of a block is read, it is finite and of the size of keys and values.
class NoiseMemory {
 public:
  NoiseMemory(offload::Extent memory, const offload::Threads& threads);

  std::byte* data() const { return memory_.data(); }
  std::uint64_t bytes() const { return memory_.bytes(); }
  std::span<const f16> numbers() const { return numbers_; }  // some of them, 64k

 private:
  offload::Extent memory_;
  std::vector<f16> numbers_;
};

// A part of such memory as the blocks of one layer of kv_heads heads. A view: the memory must outlive it.
class NoiseStore {
 public:
  static constexpr int kv_heads = 2;

  // The first `footprint` bytes, of which a turn reads one part of `parts`. Columns with scales get scales that are
  // positive, in the memory itself; levels are whatever it holds.
  NoiseStore(const NoiseMemory& memory, std::uint64_t footprint, int parts, int head_dim, offload::ColumnFormat format,
             const offload::Threads& threads);

  const offload::BlockLayout& layout() const { return layout_; }
  gpu::CacheView view(std::size_t first_block, std::size_t blocks) const;
  gpu::CacheView all() const { return view(0, blocks_.size()); }
  gpu::CacheView slice(int turn) const;  // another part each turn, in a circle
  double keys_of_slice() const { return static_cast<double>(slice(0).store.tokens) * kv_heads; }
  std::size_t blocks() const { return blocks_.size(); }

 private:
  void set_scales(const offload::Threads& threads);

  std::size_t parts_;
  offload::BlockLayout layout_;
  std::vector<std::byte*> writable_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> sums_;
  std::vector<float> spread_;  // alike in all components
};

}  // namespace hayloft::runtime::plan
