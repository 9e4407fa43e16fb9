#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// A small ring of pinned host memory through which memory that the device cannot read in place is copied to it, piece
// by piece. Thread-safe only through lock(): a operation that stages holds it from its first acquire() to its last
// release().
class StagingRing {
 public:
  StagingRing(std::uint64_t piece_bytes, int pieces);  // throws Error when not even that can be pinned
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  std::uint64_t piece_bytes() const { return piece_bytes_; }

  // The next piece, in turn, for the host to fill; waits until the copies out of it that were queued before its last
  // release() are done.
  std::byte* acquire();
  // The piece acquired last is free again when `stream` has come past this point.
  void release(cudaStream_t stream);

 private:
  void close() noexcept;

  std::mutex mutex_;
  std::uint64_t piece_bytes_;
  std::byte* memory_ = nullptr;
  std::vector<cudaEvent_t> events_;
  std::size_t next_ = 0;
};

}  // namespace hayloft::gpu::cuda
