#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "gpu/cuda/memory/device_context.h"

namespace hayloft::gpu::cuda {

// Device memory in which blocks take shape before they are copied out. It is kept: memory freed on a stream that waits
// for the link could be handed out again to the one that computes, which would then wait for the link as well.
// Thread-safe only through lock(), which is held until all is queued that uses the memory.
class SpillImage {
 public:
  SpillImage(const DeviceContext& context, cudaStream_t home) : context_(context), home_(home), last_(home) {}

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // At least so many bytes, free when `stream` has come here. Throws Error when the device has not got them.
  std::byte* begin(std::uint64_t bytes, cudaStream_t stream) {
    if (bytes > bytes_) {
      become(home_);
      memory_.reset();
      bytes_ = 0;
      memory_.emplace(context_, static_cast<std::int64_t>(bytes), home_);
      bytes_ = bytes;
    }
    become(stream);
    return memory_->data();
  }

 private:
  void become(cudaStream_t stream) {
    if (stream != last_) context_.order(last_, stream);
    last_ = stream;
  }

  const DeviceContext& context_;
  const cudaStream_t home_;  // on which the memory is allocated and freed
  cudaStream_t last_;        // that used it
  std::mutex mutex_;
  std::optional<Scratch<std::byte>> memory_;
  std::uint64_t bytes_ = 0;
};

}  // namespace hayloft::gpu::cuda
