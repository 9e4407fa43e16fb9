#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/cuda/memory/cached_block.h"
#include "gpu/cuda/memory/device_context.h"
#include "offload/store/store.h"

namespace hayloft::gpu::cuda {

// Says where things lie in the memory that one layer's columns are fetched into, at multiples of 16 bytes. Offsets are
// in bytes. All but the data is zero before a fetch.
//   stop       u32 [4]                    the first not 0: the step has come, and what is not on its way yet stays away
//   table      CachedBlock [blocks]       without slots, for a layer of which nothing is kept; and of some that come
//                                         before the step does
//   addresses  u64 [blocks]               where the device sees the host's blocks
//   list       i32 [Hkv][rank]            the components that were asked for
//   got        u8 [blocks][Hkv][rank]     1: fetched; 0: the column cache had the column, or the fetch was stopped
//   data       [blocks][Hkv][rank]        columns as slots of a CachedBlock hold them, with their scales
struct AheadLayout {
  RunLayout runs;
  int rank = 0;
  std::int64_t blocks = 0;
  static constexpr int later_blocks = 4;
  static constexpr std::uint64_t table_offset = 16;

  __host__ __device__ std::uint64_t columns() const {  // of a block
    return static_cast<std::uint64_t>(runs.kv_heads) * static_cast<std::uint64_t>(rank);
  }
  __host__ __device__ std::uint64_t block_bytes() const { return columns() * runs.slot_bytes(); }
  __host__ __device__ std::uint64_t addresses_offset() const {
    return table_offset + static_cast<std::uint64_t>(blocks + later_blocks) * sizeof(CachedBlock);
  }
  __host__ __device__ std::uint64_t list_offset() const {
    return addresses_offset() + RunLayout::aligned(static_cast<std::uint64_t>(blocks) * sizeof(std::byte*));
  }
  __host__ __device__ std::uint64_t got_offset() const {
    return list_offset() + RunLayout::aligned(columns() * sizeof(std::int32_t));
  }
  __host__ __device__ std::uint64_t data_offset() const {
    return got_offset() + RunLayout::aligned(static_cast<std::uint64_t>(blocks) * columns());
  }
  __host__ __device__ std::uint64_t bytes() const {
    return data_offset() + static_cast<std::uint64_t>(blocks) * block_bytes();
  }
};

// Points to one layer's columns in device memory, fetched before the step asked for them.
struct AheadBlocks {
  AheadLayout layout;
  std::byte* memory = nullptr;
  bool first = true;  // no other step has read it, as one of another fork may have

  __host__ __device__ unsigned* stop() const { return reinterpret_cast<unsigned*>(memory); }
  __host__ __device__ CachedBlock* table() const {
    return reinterpret_cast<CachedBlock*>(memory + AheadLayout::table_offset);
  }
  __host__ __device__ const std::byte** addresses() const {
    return reinterpret_cast<const std::byte**>(memory + layout.addresses_offset());
  }
  __host__ __device__ std::int32_t* list() const {
    return reinterpret_cast<std::int32_t*>(memory + layout.list_offset());
  }
  __host__ __device__ std::uint8_t* got() const {
    return reinterpret_cast<std::uint8_t*>(memory + layout.got_offset());
  }
  __host__ __device__ std::byte* data() const { return memory + layout.data_offset(); }
};

// The columns that the last step chose in each layer, by number, and memory for those of a few layers that are fetched
// on a stream of their own while the device computes something else. Layers are told by the serial of their first
// block, which forks of a sequence share; whether what was fetched is right is decided block by block and column by
// column, so that nothing but time depends on it.
//
// Memory is what the budget leaves free, of which a piece takes a quarter at most; it is given back to whoever asks,
// before anything that is kept. Thread-safe.
class AheadColumns {
 private:
  struct Choice {
    std::int32_t* memory = nullptr;
    int rank = 0;
    int kv_heads = 0;
    bool wanted = true;
    std::uint64_t used = 0;
    std::uint64_t bytes() const {
      return static_cast<std::uint64_t>(rank) * static_cast<std::uint64_t>(kv_heads) * sizeof(std::int32_t);
    }
  };
  struct Piece {
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    AheadLayout layout;
    std::vector<std::uint64_t> serials;  // of the blocks; empty: there are none
    bool pending = false;                // no step has read it yet, and nobody has stopped the fetch
    bool awaited = false;                // by the compute stream, since the fetch
    std::unique_ptr<Event> fetched;      // behind the fetch
    std::uint64_t used = 0;
  };

 public:
  // `mutex`: the StoreTables', as for the ColumnCache.
  AheadColumns(const DeviceContext& context, std::recursive_mutex& mutex)
      : context_(context), mutex_(mutex), lost_(context.graphs) {}
  ~AheadColumns();
  AheadColumns(const AheadColumns&) = delete;
  AheadColumns& operator=(const AheadColumns&) = delete;

  // Holds what one step reads of one layer, while it is queued; nobody else queues a fetch or a step meanwhile.
  class Use {
   public:
    ~Use() { --ahead_.busy_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    // i32 [Hkv][rank] in device memory, where the step leaves what it chooses.
    std::int32_t* choices() const { return choice_.memory; }
    const std::optional<AheadBlocks>& fetched() const { return fetched_; }
    // Returns the word that a kernel is to set to 1 as soon as the step has come; null where the fetch is over.
    unsigned* stop() const { return stop_; }
    // Whoever reads that waits for what was on its way when the step came.
    void wait(cudaStream_t stream) const {
      if (!piece_) return;
      piece_->fetched->wait(stream);
      piece_->awaited = piece_->awaited || stream == ahead_.context_.compute;
    }
    // The choice has been left there, and is to be fetched before the next step, once, if `wanted`.
    void left(bool wanted) { choice_.wanted = wanted; }

   private:
    friend class AheadColumns;
    Use(AheadColumns& ahead, std::unique_lock<std::recursive_mutex> lock, Choice& choice)
        : ahead_(ahead), lock_(std::move(lock)), choice_(choice) {
      ++ahead_.busy_;
    }
    AheadColumns& ahead_;
    std::unique_lock<std::recursive_mutex> lock_;
    Choice& choice_;
    std::optional<AheadBlocks> fetched_;
    Piece* piece_ = nullptr;
    unsigned* stop_ = nullptr;
  };
  // Returns what a step reads that chooses `rank` whole columns of each KV head and is queued on `stream`. Null where
  // there is no room.
  std::unique_ptr<Use> use(const offload::LayerView& view, int rank, cudaStream_t stream);

  // Returns whether begin() may have something to fetch, which costs less to ask.
  bool wants(const offload::LayerView& view) const;
  // Tells of a fetch that is to be queued on stream(), behind `stream`: the columns of the choice, of all blocks. List
  // and addresses have to be put there first, and zeros wherever else there are no data.
  struct Fetch {
    AheadBlocks to;
    Piece* piece;
    Choice* choice;
    std::unique_lock<std::recursive_mutex> lock;
  };
  // Returns none where the layer has not been read since its last fetch, or there is no room.
  std::optional<Fetch> begin(const offload::LayerView& view, cudaStream_t stream);
  // Orders stream() behind `stream`, and notes that others have to wait for it from here on.
  void start(cudaStream_t stream);
  // All of it is queued: the layer's next step may read it.
  void queued(const Fetch& fetch, const offload::LayerView& view);
  cudaStream_t stream() const { return stream_; }

  // Stops all that is being fetched; `stream` waits for what is on its way. Also where the device is lost.
  void settle(cudaStream_t stream) noexcept;

  std::uint64_t spare() noexcept;  // frees all of its memory, unless a step is being queued; how many bytes
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kChoices = 2048;      // 16 sessions of 128 layers
  static constexpr std::size_t kPieces = 16;         // sequences that are stepped together
  static constexpr std::uint64_t kForgotten = 512;   // uses after which a fetch will not be read any more
  static constexpr std::uint64_t kPatience = 16384;  // uses after which memory is asked for again

  using Choices = std::unordered_map<std::uint64_t, Choice>;

  Choice* choice_for(const offload::LayerView& view, int rank, cudaStream_t stream);
  Piece* piece_for(const offload::LayerView& view);  // null: all wait for their steps
  void forget_lost() noexcept;
  void stop(Piece& piece, cudaStream_t stream) noexcept;
  bool make_room(Piece& piece, const AheadLayout& layout, cudaStream_t stream);
  void* allocate(std::uint64_t bytes, cudaStream_t stream);  // null where there is no room
  void release(Piece& piece, cudaStream_t stream) noexcept;
  void release(Choice& choice, cudaStream_t stream) noexcept;

  const DeviceContext& context_;
  std::recursive_mutex& mutex_;  // guards all below
  LostLaunches lost_;
  OwnedStream stream_;
  std::atomic<bool> under_way_ = false;
  Choices choices_;
  std::list<Piece> pieces_;
  std::uint64_t uses_ = 0;
  std::uint64_t refused_at_ = 0;  // by the device; 0: never
  int busy_ = 0;                  // of steps and fetches that are being queued
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace hayloft::gpu::cuda
