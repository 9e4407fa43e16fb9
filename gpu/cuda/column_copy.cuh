#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/cuda/column_scan.cuh"
#include "gpu/cuda/context.cuh"
#include "gpu/cuda/staging.cuh"

namespace hayloft::gpu::cuda {

// 0.7 ms of a 25 GB/s link, so that the 2 r copies that bring in a slab are a small part of its time to issue.
inline constexpr std::uint64_t kColumnSlabBytes = std::uint64_t{16} << 20;

// What a copy of chosen columns out of a pinned store brings in on average.
std::uint64_t bytes_per_copy(const Context& context, const offload::LayerView& view, int rank);

// The chosen columns of one KV head over a range of tokens.
struct ColumnRange {
  int head = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Brings chosen columns into device memory, one range ahead of the one being scanned: by the copy engine out of pinned
// memory, or gathered by host threads into the staging ring where the store is not pinned. Both need to know on the
// host which columns those are, so the host has waited for the device once before; that is why reading them in place is
// the rule.
//
// A slab holds the r columns of a range side by side, [r][tokens] in the column format, then their scales. The copy
// engine fetches each column by two-dimensional copies, one for each stretch of blocks that lie equally far apart in
// memory pinned as one piece: one for all, 8 KiB a row with f16 columns and B = 4096, when a cache or a snapshot has
// laid them behind one another. (One copy per run instead costs 2 us apiece to issue, and batched copies reach a
// fraction of the link below 28 KiB.)
class ColumnSlabs {
 public:
  // components: [Hkv][r], on the host. Holds the ring's lock, if it stages, until it is destroyed.
  ColumnSlabs(const Context& context, const offload::LayerView& view, std::span<const std::int32_t> components,
              int rank, bool staged, cudaStream_t stream);

  // Tokens of the longest range, a power of two and a multiple of kChunkTokens. Ranges begin at multiples of it.
  std::int64_t tokens() const { return tokens_; }

  // Starts bringing in a range; what it overwrites is the one before the last. The scans of that one must have been
  // queued on the stream already.
  void fetch(const ColumnRange& range);
  // Where the range fetched last will be when the stream has come here.
  ColumnSource ready();

 private:
  void copy(const ColumnRange& range, std::byte* slab) const;
  void gather(const ColumnRange& range, std::byte* slab);

  const Context& context_;
  const offload::LayerView& view_;
  std::span<const std::int32_t> components_;
  int rank_;
  bool staged_;
  cudaStream_t stream_;
  std::unique_lock<std::mutex> ring_;
  std::int64_t tokens_ = 0;
  int scale_shift_ = 0;
  std::uint64_t column_bytes_ = 0;  // of a column in a slab
  std::uint64_t scale_bytes_ = 0;   // of its scales
  std::uint64_t slab_bytes_ = 0;
  std::optional<Scratch<std::byte>> slabs_;  // two
  int next_ = 0;
  std::int64_t begin_ = 0;  // of the range fetched last
};

}  // namespace hayloft::gpu::cuda
