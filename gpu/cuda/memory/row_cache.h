#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cuda/memory/ahead_columns.h"
#include "gpu/cuda/memory/device_context.h"
#include "gpu/cuda/memory/row_slots.h"

namespace hayloft::gpu::cuda {

// Rows that lists of positions named not long ago, of all layers and sequences, in device memory: as the store has
// them, each told by its block's serial and its place there. Which are kept is decided on the device
// (kernels/place_rows.h); what is read from the host fills the slots in passing. A cache is for rows of one size and so
// many KV heads, which are those of the store that was attended to last. Its memory is had, and given back, as the
// ColumnCache's. Thread-safe.
class RowCache {
 public:
  // The cache may take so many bytes; row_cache_rest: a 32nd of the budget. `mutex`: the StoreTables'. `ahead`: its
  // memory counts as free.
  RowCache(const DeviceContext& context, std::recursive_mutex& mutex, const AheadColumns& ahead, std::uint64_t bytes);
  ~RowCache();
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  // The slots while an operation is queued: nobody else queues one meanwhile. Unless it is done() by then, its end
  // forgets all rows, for some may be marked as held that nobody will fill.
  class Use {
   public:
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    const RowSlots& slots() const { return cache_->slots_; }
    std::int32_t now() const { return cache_->now_; }  // falls from use to use
    void done() { is_done_ = true; }

   private:
    friend class RowCache;
    Use(RowCache& cache, std::unique_lock<std::recursive_mutex> lock) : cache_(&cache), lock_(std::move(lock)) {}
    RowCache* cache_;
    std::unique_lock<std::recursive_mutex> lock_;
    bool is_done_ = false;
  };

  // Nothing where there is no room, or where nothing tells the view's blocks apart. What uses it is queued on `stream`.
  std::unique_ptr<Use> use(const offload::LayerView& view, cudaStream_t stream);

  // Returns the rows of a layer that are kept: for each KV head their positions in the store, those read last first.
  // Empty where there are none. Waits for the device.
  std::vector<std::vector<std::int32_t>> positions(const offload::LayerView& view);

  // Gives all memory back, in stream order, and does not take it again at once: how many bytes.
  std::uint64_t spare() noexcept;
  std::uint64_t bytes() const;  // in use
  std::uint64_t most_bytes() const { return most_; }

 private:
  static constexpr std::uint64_t kPatience = 8 * 128;  // uses

  bool fits(const offload::BlockLayout& layout) const;
  void make(const offload::BlockLayout& layout);
  void release() noexcept;
  void become(cudaStream_t stream);

  const DeviceContext& context_;
  std::recursive_mutex& mutex_;  // guards all below
  const AheadColumns& ahead_;
  const std::uint64_t most_;
  RowSlots slots_;
  void* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  int heads_ = 0;  // KV heads that it is for
  std::int32_t now_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t tried_ = 0;  // the use at which memory was asked for or given back last
  bool making_ = false;
  LostLaunches lost_;
  cudaStream_t stream_;  // that used it last
};

}  // namespace hayloft::gpu::cuda
