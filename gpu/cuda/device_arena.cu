#include <algorithm>

#include "gpu/cuda/device_arena.cuh"
#include "gpu/cuda/refuse.h"
#include "offload/format.h"

namespace hayloft::gpu::cuda {
namespace {

// Saturates: a request within a page of 2^64 still exceeds every budget.
std::uint64_t rounded(std::uint64_t bytes) {
  constexpr std::uint64_t a = DeviceArena::alignment;
  const std::uint64_t most = UINT64_MAX / a * a;
  return bytes > most ? most : std::max(a, (bytes + a - 1) / a * a);
}

}  // namespace

DeviceArena::DeviceArena(int device, std::uint64_t budget_bytes) : budget_(budget_bytes / alignment * alignment) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  HAYLOFT_CUDA(cudaMemPoolCreate(&pool_, &properties));
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
  do {
    if (bytes > budget_ - used) {
      refuse("device memory budget of ", format_bytes(budget_), " is exhausted: asked for ", format_bytes(bytes), ", ",
             format_bytes(budget_ - used), " left; raise --gpu-memory, or lower the context or --batch");
    }
  } while (!used_.compare_exchange_weak(used, used + bytes));
  std::uint64_t peak = peak_;
  while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes)) {
  }
}

std::uint64_t DeviceArena::driver_peak_bytes() const {
  std::uint64_t bytes = 0;
  if (cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &bytes) == cudaSuccess) return bytes;
  cudaGetLastError();
  return 0;
}

void* DeviceArena::allocate(std::uint64_t bytes, cudaStream_t stream) {
  bytes = rounded(bytes);
  take(bytes);
  void* data = nullptr;
  cudaError_t result = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
  if (result == cudaErrorMemoryAllocation) {
    // What the pool holds may be in pieces too small; given back, the device can join them.
    cudaGetLastError();
    result = cudaStreamSynchronize(stream);
    if (result == cudaSuccess) result = cudaMemPoolTrimTo(pool_, 0);
    if (result == cudaSuccess) result = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
  }
  if (result != cudaSuccess) used_ -= bytes;
  check(result, "cudaMallocFromPoolAsync", bytes);
  return data;
}

void DeviceArena::free(void* data, std::uint64_t bytes, cudaStream_t stream) noexcept {
  cudaFreeAsync(data, stream);  // fails when the device is lost, and then there is nothing to free
  used_ -= rounded(bytes);
}

}  // namespace hayloft::gpu::cuda
