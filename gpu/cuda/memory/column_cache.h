#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cuda/memory/ahead_columns.h"
#include "gpu/cuda/memory/cached_block.h"
#include "gpu/cuda/memory/device_context.h"

namespace hayloft::gpu::cuda {

// Columns, and planes of them, in device memory: of each block those that were read most. What a block has in host
// memory never changes, and a block is told by its serial, so that what is kept of it is right for every sequence that
// has the block. A cached block is device memory of its own, of as many slots as there is room for when it is first
// read; which runs its slots hold is decided on the device (kernels/select/place_runs.cuh), and what is read from the
// host fills them in passing: nothing crosses the link for the cache's sake.
//
// Memory is what the backend's budget leaves. Whoever needs memory gets it by spare(); blocks of sequences that were
// used least recently go first. When the blocks in use grow in number, those with the most slots make room for new
// ones and start anew with fewer. Thread-safe.
class ColumnCache {
 public:
  // The cache may take so many bytes; column_cache_rest: all but an eighth of the budget. `mutex`: the StoreTables',
  // for each of the two may free what the other has while it allocates. `ahead`: its memory is no loss to the cache,
  // and what it fetches looks at blocks that are kept.
  ColumnCache(const DeviceContext& context, std::recursive_mutex& mutex, AheadColumns& ahead, std::uint64_t bytes);
  ~ColumnCache();
  ColumnCache(const ColumnCache&) = delete;
  ColumnCache& operator=(const ColumnCache&) = delete;

  // The cached blocks of one layer while a step is queued: nobody else queues one meanwhile. Unless it is done() by
  // then, its end forgets what is kept of these blocks, for runs may be marked as held that nobody will fill.
  class Use {
   public:
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    const CachedBlock* blocks() const { return blocks_; }  // [blocks of the view], in device memory
    int slots() const { return slots_; }                   // that each block has for a KV head, at least
    void done() { cache_ = nullptr; }

   private:
    friend class ColumnCache;
    Use(ColumnCache& cache, std::unique_lock<std::recursive_mutex> lock, const CachedBlock* blocks, int slots,
        std::vector<std::uint64_t> serials)
        : cache_(&cache), lock_(std::move(lock)), blocks_(blocks), slots_(slots), serials_(std::move(serials)) {}
    ColumnCache* cache_;
    std::unique_lock<std::recursive_mutex> lock_;
    const CachedBlock* blocks_;
    int slots_;
    std::vector<std::uint64_t> serials_;
  };

  // Returns whether columns of such a store are kept at all: blocks have serials, and at least kChunkTokens tokens.
  bool keeps(const offload::LayerView& view) const;
  // Returns the table of the cached blocks [blocks of the view] in device memory, if it is up to date; else null. It
  // stays until AheadColumns::settle(), which whoever frees it calls.
  const CachedBlock* known_blocks(const offload::LayerView& view) const;
  // Nothing where there is no room. What uses it is queued on `stream`.
  std::unique_ptr<Use> use(const CacheView& cache, cudaStream_t stream);

  // Returns how often the runs of a layer were read, f32 [Hkv][runs], as its first block has it of which something is
  // kept: empty where there is none. Waits for the device.
  std::vector<float> run_uses(const offload::LayerView& view);
  // Counts those reads, [Hkv][runs], as if they had been made of every block that is kept, or can be. How many runs of
  // a KV head each has room for, at least; 0 where nothing is kept.
  int count_uses(const CacheView& cache, std::span<const float> uses, cudaStream_t stream);

  // Frees device memory of so many bytes, or what there is, in stream order, and does not take it again at once. How
  // many bytes.
  std::uint64_t spare(std::uint64_t bytes) noexcept;
  std::uint64_t bytes() const;  // in use
  std::uint64_t most_bytes() const { return most_; }

 private:
  static constexpr std::size_t kViews = 2048;       // 16 sessions of 128 layers
  static constexpr std::uint64_t kPatience = 64;    // uses of a view after which it is seen whether there is more room
  static constexpr std::uint64_t kRecentSteps = 8;  // of all layers, in which what is in use is used

  struct Entry {
    void* memory = nullptr;
    std::uint64_t bytes = 0;
    int slots = 0;
    std::uint64_t used = 0;  // the use of a view that had it, brought up to date by note_uses()
  };
  using Entries = std::unordered_map<std::uint64_t, Entry>;
  // The blocks of a layer up to some time.
  struct View {
    std::vector<std::uint64_t> serials;
    std::uint64_t used = 0;        // the cache's use, counted
    std::uint64_t built = 0;       // likewise
    std::uint64_t generation = 0;  // of the entries when the table was made
    bool short_of_room = false;
    void* table = nullptr;  // CachedBlock [blocks], in device memory
    int slots = 0;          // the fewest of a block
    std::uint64_t table_bytes() const { return serials.size() * sizeof(CachedBlock); }
  };
  using Views = std::list<View>;  // the one used last comes first

  View& look_up(const offload::LayerView& view);
  // larger: blocks that would now get many more slots begin anew with those.
  void build(View& view, const CacheView& cache, bool larger);
  void note_uses();
  std::uint64_t recent_uses() const { return kRecentSteps * layers_; }
  std::uint64_t room() const;  // bytes that may be taken besides
  // Returns how many slots each block gets where so many blocks share what may be taken in all.
  int fair_slots(const RunLayout& layout, std::uint64_t blocks) const;
  bool make_room(std::uint64_t bytes, const RunLayout& layout, int slots);
  void add(std::uint64_t serial, const RunLayout& layout, int slots, std::uint64_t before);
  Entries::iterator drop(Entries::iterator entry) noexcept;
  void release_table(View& view) noexcept;
  void forget(const std::vector<std::uint64_t>& serials) noexcept;
  void become(cudaStream_t stream);

  const DeviceContext& context_;
  std::recursive_mutex& mutex_;  // guards all below
  AheadColumns& ahead_;
  const std::uint64_t most_;
  Entries entries_;
  Views views_;
  std::unordered_map<std::uint64_t, Views::iterator> by_last_;  // serial of the last block
  std::uint64_t bytes_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t layers_ = 1;              // that the sequence had which was used last
  std::uint64_t generation_ = 0;          // counts the entries that were freed
  std::uint64_t spared_at_ = 0;           // the use before spare() was called last
  std::uint64_t spared_to_ = UINT64_MAX;  // what it left
  bool building_ = false;                 // what it has is not to be freed just now
  LostLaunches lost_;
  cudaStream_t stream_;  // that used it last
};

}  // namespace hayloft::gpu::cuda
