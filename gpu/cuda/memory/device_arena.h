#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// All device memory of a backend, within a budget. Allocated and freed in stream order from a pool of CUDA's own: a
// piece freed on a stream may be handed out again at once for work queued later on that stream, and for other streams
// once an event orders them. The pool keeps up to the budget instead of giving it back at every synchronisation, and
// holds no more than that (drivers older than CUDA 12.2: no more than fragmentation and streams that lag behind make
// it). Thread-safe. Every piece must be freed before the arena dies.
class DeviceArena {
 public:
  static constexpr std::uint64_t alignment = 512;                 // of addresses; sizes are rounded up to it
  static constexpr std::uint64_t step = std::uint64_t{32} << 20;  // that pools grow by

  // The budget is rounded down to whole steps.
  DeviceArena(int device, std::uint64_t budget_bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Never null; 0 bytes take `alignment`. Throws Error, saying what was asked, what is left and which option to change,
  // when the budget is exhausted or the device has less than that; nothing is lost then. Waits for the whole device
  // when the pool has no room at once.
  void* allocate(std::uint64_t bytes, cudaStream_t stream);
  // `bytes` as given to allocate().
  void free(void* data, std::uint64_t bytes, cudaStream_t stream) noexcept;

  // Who keeps something that can be had again is asked to free so many bytes before the budget is said to be exhausted,
  // by the thread that allocates. To be told before the arena is used.
  void when_short(std::function<void(std::uint64_t bytes)> spare) { spare_ = std::move(spare); }

  std::uint64_t budget_bytes() const { return budget_; }
  std::uint64_t used_bytes() const { return used_; }
  std::uint64_t peak_bytes() const { return peak_; }
  std::uint64_t driver_peak_bytes() const;  // of what the pool has held; 0 when the driver does not say

 private:
  void take(std::uint64_t bytes);
  std::uint64_t ask(cudaMemPoolAttr attribute) const;  // 0 when the driver does not say

  const std::uint64_t budget_;
  std::function<void(std::uint64_t bytes)> spare_;
  cudaMemPool_t pool_ = nullptr;
  std::atomic<std::uint64_t> used_ = 0;
  std::atomic<std::uint64_t> peak_ = 0;
};

}  // namespace hayloft::gpu::cuda
