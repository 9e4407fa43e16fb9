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

class DeviceArena;  // gpu/cuda/memory/device_arena.h

// Host memory that the device reads in place. As an arena's listener it pins every chunk the arena commits: touched in
// parallel first, on the NUMA node of the device, because the driver alone takes about five times as long to do both.
// Systems that refuse a large registration (WSL and containers, above 0.5 to 1 GB) may grant smaller ones, so a chunk
// is then pinned in halves, down to least_piece_bytes. Thread-safe.
class HostPins : public offload::ChunkListener {
 public:
  static constexpr std::uint64_t least_piece_bytes = std::uint64_t{64} << 20;  // that a refused one is cut into

  // With KvHost::automatic, what is refused even in the smallest pieces stays as it is, which is told once to
  // `on_warning`; no piece of a size that the system refused is tried again until some pinned memory has been given up,
  // while what the device had no room for may have it later. With KvHost::pinned it is an Error. Otherwise nothing is
  // ever pinned.
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
  // The same in as few pieces as the system grants. When it refuses one of the smallest, the others before it stay
  // pinned.
  cudaError_t pin_in_pieces(std::byte* data, std::uint64_t bytes);

  // Counts what pinned memory takes of the device as used in this arena from now on, which then must have it; null:
  // nowhere, as before.
  void charge_to(DeviceArena* arena);

  // Grows whenever memory is pinned or given up: what on_device() said at another count may be out of date.
  std::uint64_t generation() const { return generation_; }

  // Returns where the device sees [data, data + bytes), or null when not all of it is pinned, or the device sees the
  // pieces of it apart. bytes > 0.
  const std::byte* on_device(const std::byte* data, std::uint64_t bytes) const;

  // The memory that was pinned together with `data`, or nothing when that is not pinned. CUDA refuses a copy that
  // crosses from one such piece to another, also when they adjoin.
  std::span<const std::byte> piece_of(const std::byte* data) const;
  // Returns how many of these bytes, from the first on, one copy may take: they were pinned together, or are not
  // pinned. > 0.
  std::uint64_t copyable(const std::byte* data, std::uint64_t bytes) const;

 private:
  struct Pin {
    std::uint64_t bytes;
    std::byte* device;
    std::uint64_t charged;  // to the arena
  };
  using Pins = std::map<const std::byte*, Pin>;

  // Says who has refused to pin memory: the arena had no room for so many bytes of page tables, or, at 0, the system.
  struct Refused {
    std::uint64_t table_bytes = 0;
  };

  cudaError_t pin(std::byte* data, std::uint64_t bytes, Refused& by);
  cudaError_t pin_in_pieces(std::byte* data, std::uint64_t bytes, Refused& by);
  Pins::const_iterator find(const std::byte* data) const;  // the pin that holds it, or the end
  bool hopeless(std::uint64_t bytes) const;                // to pin any of so many

  const KvHost mode_;
  const int device_;
  const int node_;  // NUMA node of the device, OS index; -1 when the machine has one or does not tell
  const offload::Threads& threads_;
  const std::function<void(const std::string&)> on_warning_;
  std::atomic<std::uint64_t> generation_ = 0;
  mutable std::shared_mutex mutex_;  // guards all below
  DeviceArena* arena_ = nullptr;
  Pins pins_;
  std::uint64_t pinned_bytes_ = 0;
  std::uint64_t refused_bytes_ = UINT64_MAX;  // the smallest piece that was refused
  bool warned_ = false;
};

}  // namespace hayloft::gpu::cuda
