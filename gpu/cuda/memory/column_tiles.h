#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "gpu/cuda/memory/column_source.h"
#include "gpu/cuda/memory/device_context.h"
#include "gpu/cuda/memory/staging_ring.h"
#include "offload/host/threads.h"
#include "offload/store/store.h"

namespace hayloft::gpu::cuda {

// 0.7 ms of a 25 GB/s link, so that the 2 r copies that bring in a staging tile are a small part of its time to issue.
inline constexpr std::uint64_t kColumnTileBytes = std::uint64_t{16} << 20;

// Counts what is read of a KV head: runs of its columns that lie behind one another, which are whole columns, or of
// planes the single ones; and so many columns' scales.
struct ColumnCount {
  int columns = 0;  // r
  int runs = 0;
};

// Returns what a copy of chosen columns out of a pinned store brings in on average.
std::uint64_t bytes_per_copy(const HostPins& pins, const offload::LayerView& view, const ColumnCount& count);

// Host threads and the ring that they gather columns into, where a part of the store is not pinned.
struct HostGather {
  StagingRing& ring;
  const offload::Threads& threads;
};

// The chosen columns of one KV head over a range of tokens.
struct ColumnRange {
  int head = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool staged = false;  // the blocks are not pinned
};

// Brings chosen columns into device memory, one range ahead of the one being scanned: by the copy engine out of pinned
// memory, or gathered by host threads into the staging ring where the store is not pinned. Both need to know on the
// host which columns those are, so the host has waited for the device once before; that is why reading them in place is
// the rule. When an error leaves a range half fetched, the destructor waits for the copies.
//
// A staging tile holds the r columns of a range side by side, [r][tokens] in the column format, then their scales; of
// columns in planes the planes that are read, [planes][tokens] bits, then the ranges of the r components. The
// copy engine fetches each column by two-dimensional copies, one for each stretch of blocks that lie equally far apart
// in memory pinned as one piece: one for all, 8 KiB a row with f16 columns and B = 4096, when a cache or a snapshot has
// laid them behind one another. (One copy per run instead costs 2 us apiece to issue, and batched copies reach a
// fraction of the link below 28 KiB.)
class ColumnTiles {
 public:
  // chosen: components [Hkv][r], on the host, behind which may be how many planes are read of each, [Hkv][r]; if not,
  // all. gather: where some range is staged; the ring's lock is then held until this is destroyed.
  ColumnTiles(const DeviceContext& context, const offload::LayerView& view, std::span<const std::int32_t> chosen,
              const ColumnCount& count, std::optional<HostGather> gather, cudaStream_t stream);
  ~ColumnTiles();
  ColumnTiles(const ColumnTiles&) = delete;
  ColumnTiles& operator=(const ColumnTiles&) = delete;

  // Tokens of the longest range, a power of two and a multiple of kChunkTokens. Ranges begin at multiples of
  // kChunkTokens.
  std::int64_t tokens() const { return tokens_; }

  // Starts bringing in a range; what it overwrites is the one before the last. The scans of that one must have been
  // queued on the stream already.
  void fetch(const ColumnRange& range);
  // Returns where the range fetched last will be when the stream has come here.
  ColumnSource ready();

 private:
  // A piece of a KV head, in the order of a tile: where it lies in the head, in a block, and in the tile; and how many
  // bytes all tokens of a block have of it.
  struct Piece {
    std::uint64_t source;
    std::uint64_t target;
    std::uint64_t block_bytes;
  };
  std::vector<Piece> pieces_of(int head) const;
  void copy(const ColumnRange& range, std::byte* tile) const;
  void gather(const ColumnRange& range, std::byte* tile);

  const DeviceContext& context_;
  const offload::LayerView& view_;
  std::span<const std::int32_t> chosen_;
  ColumnCount count_;
  std::optional<HostGather> gather_;
  cudaStream_t stream_;
  std::unique_lock<std::mutex> ring_;
  std::int64_t tokens_ = 0;
  int scale_shift_ = 0;
  std::uint64_t run_bytes_ = 0;    // of a run of columns in a tile
  std::uint64_t scale_bytes_ = 0;  // of a column's scales
  std::uint64_t tile_bytes_ = 0;
  std::optional<Scratch<std::byte>> tiles_;  // two
  int next_ = 0;
  std::int64_t begin_ = 0;  // of the range fetched last
  bool fetching_ = false;   // copies may be under way that the stream does not wait for yet
};

}  // namespace hayloft::gpu::cuda
