#include <algorithm>
#include <new>
#include <utility>

#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/api/stream.h"
#include "gpu/cuda/memory/device_arena.h"
#include "offload/text/format.h"

namespace hayloft::gpu::cuda {
namespace {

// Up to a multiple of `unit`. Saturates: a request within a page of 2^64 still exceeds every budget.
std::uint64_t rounded_to(std::uint64_t unit, std::uint64_t bytes) {
  const std::uint64_t most = UINT64_MAX / unit * unit;
  return bytes > most ? most : (bytes + unit - 1) / unit * unit;
}

cudaError_t create_pool(int device, [[maybe_unused]] std::uint64_t most_bytes, cudaMemPool_t* pool) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
#if CUDART_VERSION >= 12020
  properties.maxSize = most_bytes;
  const cudaError_t made = cudaMemPoolCreate(pool, &properties);
  if (made != cudaErrorInvalidValue) return made;
  cudaGetLastError();  // the driver is older than that
  properties.maxSize = 0;
#endif
  return cudaMemPoolCreate(pool, &properties);
}

}  // namespace

DeviceArena::DeviceArena(int device, std::uint64_t budget_bytes, std::uint64_t step_bytes)
    : device_(device), budget_(budget_bytes / step * step) {
  lasting_.most = budget_ - std::min(budget_, step_bytes / step * step);
  // Made at once, so that a driver without pools is refused before anything is loaded; the sessions' when it is known
  // what the lasting pieces leave.
  open(lasting_, lasting_.most);
  try {
    if (budget_ == lasting_.most) return;
    open(step_, budget_ - lasting_.most);
    fill(step_);
  } catch (...) {
    for (Pool* pool : {&step_, &lasting_}) close(*pool);
    throw;
  }
}

DeviceArena::~DeviceArena() {
  drop_kept();
  for (Pool* pool : {&session_, &step_, &lasting_}) close(*pool);
}

void DeviceArena::open(Pool& pool, std::uint64_t most) {
  check(create_pool(device_, most, &pool.handle), "cudaMemPoolCreate");
  const cudaError_t set = cudaMemPoolSetAttribute(pool.handle, cudaMemPoolAttrReleaseThreshold, &most);
  if (set != cudaSuccess) close(pool);
  check(set, "cudaMemPoolSetAttribute");
  pool.most = most;
}

// A pool keeps what it has held once. A driver may refuse the whole of what a pool may hold, as one that counts its own
// rounding towards it would, although the device has the memory: then the pool is filled by half as much, or not at
// all, and grows as it is used.
void DeviceArena::fill(const Pool& pool) const {
  const OwnedStream stream;
  for (std::uint64_t bytes = pool.most; bytes > 0; bytes = bytes / 2 / step * step) {
    void* piece = nullptr;
    const cudaError_t result = cudaMallocFromPoolAsync(&piece, bytes, pool.handle, stream);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0, total = 0;
      HAYLOFT_CUDA(cudaMemGetInfo(&free, &total));
      if (free >= pool.most) continue;
    }
    check(result, "cudaMallocFromPoolAsync", bytes);
    HAYLOFT_CUDA(cudaFreeAsync(piece, stream));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream));
    return;
  }
}

void DeviceArena::close(Pool& pool) noexcept {
  if (pool.handle) cudaMemPoolDestroy(pool.handle);
  pool = {};
}

std::uint64_t DeviceArena::session_room() const {
  return session_.used > 0 ? session_.most : lasting_.most - rounded_to(step, lasting_.used);
}

std::uint64_t DeviceArena::left_for_sessions() const {
  return session_room() - session_.used - aside_;
}

bool DeviceArena::set_aside(std::uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (const std::uint64_t left = left_for_sessions(); bytes > left && spare_) {
    lock.unlock();  // it frees
    spare_(bytes - left);
    lock.lock();
  }
  if (bytes > left_for_sessions()) return false;
  aside_ += bytes;
  peak_ = std::max(peak_, used());
  return true;
}

void DeviceArena::give_back(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  aside_ -= bytes;
}

std::uint64_t DeviceArena::used() const {
  return budget_ - left_for_sessions();
}

std::uint64_t DeviceArena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used();
}

std::uint64_t DeviceArena::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return std::max(peak_, used());
}

std::uint64_t DeviceArena::held(const Pool& pool, cudaMemPoolAttr which) const {
  std::uint64_t bytes = 0;
  if (!pool.handle || cudaMemPoolGetAttribute(pool.handle, which, &bytes) == cudaSuccess) return bytes;
  cudaGetLastError();
  return 0;
}

std::uint64_t DeviceArena::driver_peak() const {
  std::uint64_t sum = 0;
  for (const Pool* pool : {&session_, &lasting_, &step_}) sum += held(*pool, cudaMemPoolAttrReservedMemHigh);
  return std::max(driver_peak_, sum);
}

std::uint64_t DeviceArena::driver_peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return driver_peak();
}

std::uint64_t DeviceArena::room_for_step(std::uint64_t wanted) {
  std::unique_lock lock(mutex_);
  const auto room = [this] { return std::max(step_.most - step_.used, left_for_sessions()); };
  if (room() < wanted && spare_) {
    const std::uint64_t missing = wanted - left_for_sessions();
    lock.unlock();
    spare_(missing);
    lock.lock();
  }
  return room() / alignment * alignment;
}

// Gives back what lasting pieces that were freed have left in their pool.
void DeviceArena::trim_lasting() {
  if (held(lasting_, cudaMemPoolAttrReservedMemCurrent) <= rounded_to(step, lasting_.used)) return;
  HAYLOFT_CUDA(cudaDeviceSynchronize());
  driver_peak_ = driver_peak();
  HAYLOFT_CUDA(cudaMemPoolTrimTo(lasting_.handle, 0));
  std::uint64_t none = 0;
  HAYLOFT_CUDA(cudaMemPoolSetAttribute(lasting_.handle, cudaMemPoolAttrReservedMemHigh, &none));
}

// The pool that has so many bytes, which are taken of it. Called with the mutex locked.
DeviceArena::Pool& DeviceArena::pool_for(std::uint64_t bytes, Purpose purpose) {
  const auto take_from = [&](Pool& pool) -> Pool& {
    pool.used += bytes;
    return pool;
  };
  if (purpose == Purpose::step && bytes <= step_.most - step_.used) return take_from(step_);
  const auto close_idle = [&] {  // what it holds is room for others
    if (!session_.handle) return;
    HAYLOFT_CUDA(cudaDeviceSynchronize());
    driver_peak_ = driver_peak();
    close(session_);
  };
  if (purpose == Purpose::lasting && session_.used == 0) {
    close_idle();
    const std::uint64_t room = lasting_.most - lasting_.used;
    if (bytes <= room && rounded_to(step, lasting_.used + bytes) + aside_ <= lasting_.most) return take_from(lasting_);
  }
  const std::uint64_t left = left_for_sessions();
  if (bytes > left) {
    refuse_for_memory("device memory budget of ", format_bytes(budget_), " is exhausted: asked for ",
                      format_bytes(bytes), ", ", format_bytes(left),
                      " left; raise --gpu-memory, or lower the context or --batch");
  }
  if (session_.most != session_room()) close_idle();
  if (!session_.handle) {
    trim_lasting();
    open(session_, session_room());
  }
  return take_from(session_);
}

// Returns a kept piece of so many bytes or up to an eighth more, null where there is none. The steps of one session ask
// for the same sizes again and again, which grow as it does. Of several the first in memory, so that a step that asks
// as the one before did has the same pieces, wherever they were freed last (StepGraphs).
void* DeviceArena::take_kept(std::uint64_t bytes) {
  const auto found = kept_.lower_bound({bytes, nullptr});
  if (found == kept_.end() || found->first - bytes > bytes / 8) return nullptr;
  void* const data = found->second;
  others_[data] = {&step_, found->first};
  step_.used += found->first;
  kept_bytes_ -= found->first;
  kept_.erase(found);
  return data;
}

void DeviceArena::drop_kept() noexcept {
  for (const auto& [bytes, data] : kept_) cudaFreeAsync(data, in_order_quietly(steps_));
  kept_.clear();
  kept_bytes_ = 0;
}

void* DeviceArena::allocate(std::uint64_t bytes, cudaStream_t stream, Purpose purpose) {
  bytes = rounded_to(alignment, std::max<std::uint64_t>(bytes, 1));
  std::unique_lock lock(mutex_);
  if (purpose == Purpose::step && stream == steps_) {
    if (void* const kept = take_kept(bytes)) return kept;
  }
  const bool set_aside = purpose == Purpose::step && bytes <= step_.most - step_.used;
  if (const std::uint64_t left = left_for_sessions(); !set_aside && bytes > left && spare_) {
    lock.unlock();  // it frees
    spare_(bytes - left);
    lock.lock();
  }
  Pool& pool = pool_for(bytes, purpose);
  if (&pool == &step_ && step_.used + kept_bytes_ > step_.most) drop_kept();
  peak_ = std::max(peak_, used());
  lock.unlock();  // the driver may wait for the device
  try {
    void* const data = allocate_from(pool, bytes, stream);
    if (&pool != &session_) {
      lock.lock();
      others_[data] = {&pool, bytes};
    }
    return data;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    pool.used -= bytes;
    throw;
  }
}

void* DeviceArena::allocate_from(Pool& pool, std::uint64_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  const auto taken = [&] {
    const cudaError_t result = cudaMallocFromPoolAsync(&data, bytes, pool.handle, in_order(stream));
    if (result == cudaErrorMemoryAllocation) cudaGetLastError();
    return result;
  };
  // Memory that was freed on another stream comes back when that has got there, and what the pool holds in pieces too
  // small can be joined once it is given back.
  const auto taken_when_joined = [&] {
    cudaError_t result = cudaDeviceSynchronize();
    if (result == cudaSuccess) result = cudaMemPoolTrimTo(pool.handle, 0);
    return result == cudaSuccess ? taken() : result;
  };
  cudaError_t result = taken();
  if (result == cudaErrorMemoryAllocation && &pool == &step_) {
    std::unique_lock lock(mutex_);
    drop_kept();  // pieces that lie between
    lock.unlock();
    result = taken();
  }
  if (result == cudaErrorMemoryAllocation) result = taken_when_joined();
  if (result == cudaErrorMemoryAllocation && spare_) {  // pieces that are kept lie between
    spare_(UINT64_MAX);
    result = taken_when_joined();
  }
  if (result == cudaSuccess) return data;
  if (result == cudaErrorMemoryAllocation && held(pool, cudaMemPoolAttrReservedMemCurrent) + bytes > pool.most) {
    const std::lock_guard lock(mutex_);
    refuse_for_memory("device memory budget of ", format_bytes(budget_), " is exhausted: asked for ",
                      format_bytes(bytes), ", ", format_bytes(left_for_sessions() + bytes),
                      " left but not in one piece; raise --gpu-memory, or lower the context or --batch");
  }
  check(result, "cudaMallocFromPoolAsync", bytes);
  return nullptr;
}

void DeviceArena::free(void* data, std::uint64_t bytes, cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = others_.find(data);
  Piece piece{&session_, rounded_to(alignment, std::max<std::uint64_t>(bytes, 1))};
  if (found != others_.end()) {
    piece = found->second;
    others_.erase(found);
  }
  piece.pool->used -= piece.bytes;
  if (piece.pool == &step_ && stream == steps_) {
    try {
      kept_.emplace(piece.bytes, data);
      kept_bytes_ += piece.bytes;
      return;
    } catch (const std::bad_alloc&) {  // then the driver has it back
    }
  }
  cudaFreeAsync(data, in_order_quietly(stream));  // fails when the device is lost, and then there is nothing to free
}

}  // namespace hayloft::gpu::cuda
