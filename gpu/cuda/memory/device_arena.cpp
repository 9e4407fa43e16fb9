#include <algorithm>
#include <utility>

#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/memory/device_arena.h"
#include "offload/format.h"

namespace hayloft::gpu::cuda {
namespace {

// Saturates: a request within a page of 2^64 still exceeds every budget.
std::uint64_t rounded(std::uint64_t bytes) {
  constexpr std::uint64_t a = DeviceArena::alignment;
  const std::uint64_t most = UINT64_MAX / a * a;
  return bytes > most ? most : std::max(a, (bytes + a - 1) / a * a);
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

DeviceArena::DeviceArena(int device, std::uint64_t budget_bytes) : budget_(budget_bytes / step * step) {
  check(create_pool(device, budget_, &pool_), "cudaMemPoolCreate");
  std::uint64_t keep = budget_;
  const cudaError_t set = cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep);
  if (set != cudaSuccess) cudaMemPoolDestroy(pool_);
  check(set, "cudaMemPoolSetAttribute");
}

DeviceArena::~DeviceArena() {
  cudaMemPoolDestroy(pool_);
}

void DeviceArena::take(std::uint64_t bytes) {
  std::uint64_t used = used_;
  bool spared = false;
  do {
    if (bytes > budget_ - used && spare_ && !std::exchange(spared, true)) {
      spare_(bytes - (budget_ - used));
      used = used_;
    }
    if (bytes > budget_ - used) {
      refuse("device memory budget of ", format_bytes(budget_), " is exhausted: asked for ", format_bytes(bytes), ", ",
             format_bytes(budget_ - used), " left; raise --gpu-memory, or lower the context or --batch");
    }
  } while (!used_.compare_exchange_weak(used, used + bytes));
  std::uint64_t peak = peak_;
  while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes)) {
  }
}

std::uint64_t DeviceArena::ask(cudaMemPoolAttr attribute) const {
  std::uint64_t bytes = 0;
  if (cudaMemPoolGetAttribute(pool_, attribute, &bytes) == cudaSuccess) return bytes;
  cudaGetLastError();
  return 0;
}

std::uint64_t DeviceArena::driver_peak_bytes() const {
  return ask(cudaMemPoolAttrReservedMemHigh);
}

void* DeviceArena::allocate(std::uint64_t bytes, cudaStream_t stream) {
  bytes = rounded(bytes);
  take(bytes);
  void* data = nullptr;
  cudaError_t result = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
  if (result == cudaErrorMemoryAllocation) {
    // What was freed on another stream comes back when that has got there, and what the pool holds in pieces too small
    // can be joined once it is given back.
    cudaGetLastError();
    result = cudaDeviceSynchronize();
    if (result == cudaSuccess) result = cudaMemPoolTrimTo(pool_, 0);
    if (result == cudaSuccess) result = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
  }
  if (result == cudaSuccess) return data;
  used_ -= bytes;
  if (result == cudaErrorMemoryAllocation && ask(cudaMemPoolAttrReservedMemCurrent) + bytes > budget_) {
    cudaGetLastError();
    refuse("device memory budget of ", format_bytes(budget_), " is exhausted: asked for ", format_bytes(bytes), ", ",
           format_bytes(budget_ - used_),
           " left but not in one piece; raise --gpu-memory, or lower the context or "
           "--batch");
  }
  check(result, "cudaMallocFromPoolAsync", bytes);
  return nullptr;
}

void DeviceArena::free(void* data, std::uint64_t bytes, cudaStream_t stream) noexcept {
  cudaFreeAsync(data, stream);  // fails when the device is lost, and then there is nothing to free
  used_ -= rounded(bytes);
}

}  // namespace hayloft::gpu::cuda
