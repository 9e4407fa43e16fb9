#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gpu/cuda/memory/device_context.h"
#include "gpu/cuda/memory/device_store.h"
#include "offload/store/store.h"

namespace hayloft::gpu::cuda {

// Blocks [begin, end) of a view, all of which the device can read in place, or none of which: rows and columns of the
// latter are gathered by host threads into a pinned ring and copied (`--kv-host staged`).
struct BlockRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool in_place = false;
};

// The tables of block addresses, the value sums, the spreads and the ranges of integer rows that kernels read, in
// device memory, kept from call to call: a layer changes once per block of tokens only. A table is found by what the
// view says, not by where it lies, so copies of a store share it; and it never changes, so another session's view of
// the same blocks cannot disturb kernels that are yet to be queued. Thread-safe.
class StoreTables {
 public:
  explicit StoreTables(const DeviceContext& context) : context_(context) {}
  ~StoreTables();
  StoreTables(const StoreTables&) = delete;
  StoreTables& operator=(const StoreTables&) = delete;

  // The blocks of the view, in order, as the device reaches them. None for a view without blocks.
  std::vector<BlockRun> runs(const offload::LayerView& view);
  // Returns whether the device can read all of them in place.
  bool pinned(const offload::LayerView& view);

  // The store as kernels see it, without addresses of the blocks that the device cannot read in place. A store without
  // blocks has null tables. The table stays until this thread's next find(), or its end, at least: an operation finds
  // one, and has queued all that reads it when it returns. After kTables others it is freed, in stream order; with
  // ranges, which take some bytes per token, when a longer version of the layer is found first, too.
  DeviceStore find(const offload::LayerView& view, cudaStream_t stream);

  // Frees device memory of so many bytes, or what there is, in stream order: of the tables that were used least
  // recently and whose operation is over. They are uploaded again when they are wanted again.
  void spare(std::uint64_t bytes) noexcept;

  // Held while it allocates: others whose memory may then be asked for hold the same while they do.
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  static constexpr std::size_t kTables = 2048;  // 16 sessions of 128 layers

  struct Table {
    std::vector<const std::byte*> blocks;  // on the host
    std::vector<std::uint64_t> serials;
    std::vector<float> value_sum;
    std::vector<float> spread;
    std::uint64_t range_bytes = 0;            // of all blocks
    std::vector<std::byte> last_ranges;       // of the last block, [Hkv], which tell it from another at its address
    std::uint64_t generation = UINT64_MAX;    // HostPins', when the next one was found out
    std::vector<const std::byte*> on_device;  // of the blocks; null for one that is not pinned
    std::vector<BlockRun> runs;
    void* memory = nullptr;  // the addresses, serials, value sums, spread and ranges; null until a kernel wants it
    cudaStream_t stream = nullptr;  // that used it last
    std::uint64_t lost = 0;         // StepGraphs', when all of that was uploaded

    std::uint64_t ranges_offset() const {  // a multiple of 16
      const std::uint64_t before = blocks.size() * sizeof(std::byte*) + serials.size() * sizeof(std::uint64_t) +
                                   (value_sum.size() + spread.size()) * sizeof(float);
      return range_bytes == 0 ? before : (before + 15) / 16 * 16;
    }
    std::uint64_t bytes() const { return ranges_offset() + range_bytes; }
  };
  // Keeps what a thread found last, until it ends.
  struct Found {
    std::weak_ptr<const void> thread;
    const Table* table = nullptr;
  };
  using Tables = std::list<Table>;  // the one used last comes first

  Table& look_up(const offload::LayerView& view);
  void release_shorter(const Table& table) noexcept;  // versions of the same layer that nobody uses just now
  void locate(Table& table, const offload::LayerView& view);
  void upload(Table& table, const offload::LayerView& view, cudaStream_t stream);
  std::uint64_t release(Table& table) noexcept;  // how many bytes
  bool in_use(const Table& table) const;

  const DeviceContext& context_;
  std::recursive_mutex mutex_;  // guards all below; find() allocates, which may call spare()
  Tables tables_;
  std::unordered_map<std::thread::id, Found> found_;
  std::unordered_multimap<const std::byte*, Tables::iterator>
      by_last_block_;  // which tells even versions of a layer apart
};

}  // namespace hayloft::gpu::cuda
