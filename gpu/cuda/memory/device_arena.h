#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// All device memory of a backend, within a budget. Allocated and freed in stream order from pools of CUDA's own: a
// piece freed on a stream may be handed out again at once for work queued later on that stream, and, unless
// keep_steps_of() keeps it, for other streams once an event orders them. The pools keep what they hold instead of
// giving it back at every synchronisation, and together hold no more than the budget (drivers older than CUDA 12.2: no
// more than fragmentation and streams that lag behind make it). Thread-safe. Free every piece before the arena dies.
//
// Pools grow in steps, so that pieces of one kind do not fragment the room of another: what stays as long as the
// backend lies in one pool; what a step of decoding or of a prompt needs has a pool that is filled from the beginning,
// as far as the driver lets it, so that no step waits for memory or finds that another process has taken it; the rest,
// which is all that both leave, is for sessions.
class DeviceArena {
 public:
  static constexpr std::uint64_t alignment = 512;                 // of addresses; sizes are rounded up to it
  static constexpr std::uint64_t step = std::uint64_t{32} << 20;  // that pools grow by

  // The purpose of a piece. A lasting one counts by whole steps, and is taken from the room of the sessions when some
  // of that is in use already; one for a step is, when what is set aside does not suffice.
  enum class Purpose : std::uint8_t { session, lasting, step };

  // The budget, and what of it is taken at once for the pieces of steps, are rounded down to whole steps. Waits. Throws
  // Error when the device has not got the latter.
  DeviceArena(int device, std::uint64_t budget_bytes, std::uint64_t step_bytes = 0);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Never null; 0 bytes take `alignment`. Throws Error, saying what was asked, what is left and which option to change,
  // when the budget is exhausted or the device has less than that; nothing is lost then. Waits for the whole device
  // when the pool has no room at once.
  void* allocate(std::uint64_t bytes, cudaStream_t stream, Purpose purpose = Purpose::session);
  // `bytes` as given to allocate().
  void free(void* data, std::uint64_t bytes, cudaStream_t stream) noexcept;

  // Registers one who keeps something that can be had again, and is asked to free so many bytes before the budget is
  // said to be exhausted, by the thread that allocates or sets aside. To be told before the arena is used.
  void when_short(std::function<void(std::uint64_t bytes)> spare) { spare_ = std::move(spare); }

  // From now on pieces for steps that are freed on this stream are kept, and handed out again on it, and on no other,
  // without a call of the driver, as long as there is room for others beside them. The stream outlives the arena. To be
  // told before the arena is used.
  void keep_steps_of(cudaStream_t stream) { steps_ = stream; }

  std::uint64_t budget_bytes() const { return budget_; }
  std::uint64_t used_bytes() const;  // with what is set aside; the rest may be had by a session
  std::uint64_t peak_bytes() const;
  std::uint64_t driver_peak_bytes() const;  // of what the pools have held; 0 when the driver does not say

  // Counts memory that the driver takes for itself, of the sessions' room, for which those who keep something are asked
  // to free it; false when there is not so much even so.
  bool set_aside(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) noexcept;

  // The largest piece that a step can have, at least `wanted` where that can be had by asking who keeps something.
  std::uint64_t room_for_step(std::uint64_t wanted);

 private:
  struct Pool {
    cudaMemPool_t handle = nullptr;
    std::uint64_t most = 0;
    std::uint64_t used = 0;
  };

  // A piece that is not of the sessions' pool, and its size in that.
  struct Piece {
    Pool* pool = nullptr;
    std::uint64_t bytes = 0;
  };

  void open(Pool& pool, std::uint64_t most);
  void* take_kept(std::uint64_t bytes);
  void drop_kept() noexcept;
  void fill(const Pool& pool) const;
  void close(Pool& pool) noexcept;
  void trim_lasting();
  Pool& pool_for(std::uint64_t bytes, Purpose purpose);
  std::uint64_t session_room() const;  // that of the sessions' pool, or of the one that would be opened
  std::uint64_t left_for_sessions() const;
  std::uint64_t used() const;
  void* allocate_from(Pool& pool, std::uint64_t bytes, cudaStream_t stream);
  std::uint64_t held(const Pool& pool, cudaMemPoolAttr which) const;  // 0 when the driver does not say
  std::uint64_t driver_peak() const;

  const int device_;
  const std::uint64_t budget_;
  std::function<void(std::uint64_t bytes)> spare_;
  mutable std::mutex mutex_;  // guards all below
  Pool session_, lasting_, step_;
  std::unordered_map<void*, Piece> others_;
  cudaStream_t steps_ = nullptr;
  std::set<std::pair<std::uint64_t, void*>> kept_;  // their sizes, and where they are
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t aside_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t driver_peak_ = 0;  // with pools that are closed
};

}  // namespace hayloft::gpu::cuda
