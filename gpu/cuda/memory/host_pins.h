#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <shared_mutex>
#include <span>
#include <string>

#include "gpu/backend.h"
#include "gpu/cuda/api/check.h"
#include "gpu/device_options.h"

namespace hayloft::gpu::cuda {

// Host memory that the device reads in place. As an arena's listener it pins every chunk the arena commits: touched in
// parallel first, on the NUMA node of the device, because the driver alone takes about five times as long to do both.
// Thread-safe.
class HostPins : public offload::ChunkListener {
 public:
  // With KvHost::automatic, a refusal is told once to `on_warning`, and from then on nothing more is pinned: most of K
  // and V would have to be staged anyhow. With KvHost::pinned it is an Error. Otherwise nothing is ever pinned.
  HostPins(KvHost mode, int device, const offload::Threads& threads,
           std::function<void(const std::string&)> on_warning);
  ~HostPins() override;

  void committed(std::byte* data, std::uint64_t bytes) override;
  // Waits for the whole device: what is queued may still read the memory.
  void releasing(std::byte* data, std::uint64_t bytes) noexcept override;

  // Writes a zero into every page, on the NUMA node of the device, from all threads: what takes the time of pinning.
  void touch(std::byte* data, std::uint64_t bytes) const;

  // Pins memory in any mode, as one piece, or leaves it as it was and says why. releasing() gives it up again.
  cudaError_t pin(std::byte* data, std::uint64_t bytes);

  // Grows whenever memory is pinned or given up: what on_device() said at another count may be out of date.
  std::uint64_t generation() const { return generation_; }

  // Where the device sees [data, data + bytes), or null when not all of it is pinned. bytes > 0.
  const std::byte* on_device(const std::byte* data, std::uint64_t bytes) const;

  // The memory that was pinned together with `data`, or nothing when that is not pinned. CUDA refuses a copy that
  // crosses from one such piece to another, also when they adjoin.
  std::span<const std::byte> piece_of(const std::byte* data) const;

 private:
  struct Pin {
    std::uint64_t bytes;
    std::byte* device;
  };
  using Pins = std::map<const std::byte*, Pin>;

  Pins::const_iterator find(const std::byte* data) const;  // the pin that holds it, or the end

  const KvHost mode_;
  const int node_;  // NUMA node of the device, OS index; -1 when the machine has one or does not tell
  const offload::Threads& threads_;
  const std::function<void(const std::string&)> on_warning_;
  std::atomic<std::uint64_t> generation_ = 0;
  mutable std::shared_mutex mutex_;  // guards all below
  Pins pins_;
  bool refused_ = false;
};

}  // namespace hayloft::gpu::cuda
