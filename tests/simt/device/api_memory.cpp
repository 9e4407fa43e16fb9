#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "tests/simt/device/pool.h"
#include "tests/simt/device/runtime.h"

// Allocations, registrations and memory pools.
struct CUmemPoolHandle_st {
  int device = 0;
  std::uint64_t release_threshold = 0;
  std::shared_ptr<hayloft::simt::PoolMemory> memory;  // lives as long as what was taken from it
};

namespace hayloft::simt {
namespace {

cudaError_t allocate_now(Runtime& runtime, void** data, std::size_t bytes) {
  const auto allocate = [&] {
    *data = bytes <= runtime.left() ? runtime.memory.allocate(bytes, Runtime::current()) : nullptr;
    return *data != nullptr;
  };
  if (allocate()) return cudaSuccess;
  // Memory that was freed in stream order comes back.
  if (const cudaError_t error = runtime.wait_all(); error != cudaSuccess) return error;
  return allocate() ? cudaSuccess : cudaErrorMemoryAllocation;
}

// pool: null for the device's own, which is as large as the device.
cudaError_t allocate_in_order(const char* function, void** data, std::size_t bytes, cudaMemPool_t pool,
                              cudaStream_t stream) {
  return api(function, [&](Runtime& runtime) {
    if (!data) return cudaErrorInvalidValue;
    if (!runtime.known(stream) || (pool && pool->device != stream->device)) return cudaErrorInvalidResourceHandle;
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (!pool) {
      const cudaError_t error = allocate_now(runtime, data, bytes);
      if (error != cudaSuccess) return error;
    } else {
      const std::uint64_t held = pool->memory->held();
      if (!pool->memory->take(bytes, stream, runtime.left())) return cudaErrorMemoryAllocation;
      if (pool->memory->held() > held) ++runtime.pool_growths;
      *data = runtime.memory.allocate(bytes, Runtime::current());
      runtime.pooled[*data] = {pool->memory, bytes};
      runtime.pooled_bytes[pool->device] += bytes;
    }
    runtime.queue(stream, [&runtime, memory = *data] { runtime.memory.begin(memory); });
    return cudaSuccess;
  });
}

cudaError_t allocate_pinned(const char* function, void** data, std::size_t bytes, unsigned flags) {
  return api(function, [&](Runtime& runtime) {
    constexpr unsigned all = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (!data || flags > all) return cudaErrorInvalidValue;
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (runtime.memory.pinned_bytes() + bytes > runtime.device.registrable_bytes) return cudaErrorMemoryAllocation;
    void* memory = nullptr;
    if (posix_memalign(&memory, 4096, bytes) != 0) return cudaErrorMemoryAllocation;
    fill_unwritten(memory, bytes);
    runtime.memory.pin(memory, bytes, true);
    *data = memory;
    return cudaSuccess;
  });
}

}  // namespace
}  // namespace hayloft::simt

using hayloft::simt::api;
using hayloft::simt::give_back;
using hayloft::simt::MemoryPlace;
using hayloft::simt::PoolMemory;
using hayloft::simt::Runtime;

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return api("cudaMalloc", [&](Runtime& runtime) {
    if (!data) return cudaErrorInvalidValue;
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    const cudaError_t error = hayloft::simt::allocate_now(runtime, data, bytes);
    if (error == cudaSuccess) runtime.memory.begin(*data);
    return error;
  });
}

cudaError_t cudaFree(void* data) {
  return give_back("cudaFree", [&](Runtime& runtime) {
    return !data || runtime.memory.release(data) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes, unsigned flags) {
  return hayloft::simt::allocate_pinned("cudaMallocHost", data, bytes, flags);
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags) {
  return hayloft::simt::allocate_pinned("cudaHostAlloc", data, bytes, flags);
}

cudaError_t cudaFreeHost(void* data) {
  return give_back("cudaFreeHost", [&](Runtime& runtime) {
    if (!data) return cudaSuccess;
    if (!runtime.memory.unpin(data, true)) return cudaErrorInvalidValue;
    std::free(data);
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned flags) {
  return api("cudaHostRegister", [&](Runtime& runtime) {
    constexpr unsigned all =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (!data || bytes == 0 || flags > all) return cudaErrorInvalidValue;
    if (bytes > runtime.device.registration_bytes) return cudaErrorMemoryAllocation;
    if (runtime.memory.pinned_bytes() + bytes > runtime.device.registrable_bytes) return cudaErrorMemoryAllocation;
    return runtime.memory.pin(data, bytes, false) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}

cudaError_t cudaHostUnregister(void* data) {
  return give_back("cudaHostUnregister", [&](Runtime& runtime) {
    if (!data) return cudaErrorInvalidValue;
    return runtime.memory.unpin(data, false) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return api("cudaHostGetDevicePointer", [&](Runtime& runtime) {
    if (!device || flags != 0 || runtime.memory.place(host, 1) != MemoryPlace::pinned) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return api("cudaMemGetInfo", [&](Runtime& runtime) {
    if (!free || !total) return cudaErrorInvalidValue;
    *total = runtime.device.memory_bytes;
    const hayloft::simt::Device& device = runtime.device;
    *free = runtime.left();
    if (device.pinned_per_entry_byte > 0) {
      *free -= std::min<std::size_t>(*free, runtime.memory.pinned_bytes() / device.pinned_per_entry_byte);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  return hayloft::simt::allocate_in_order("cudaMallocAsync", data, bytes, nullptr, stream);
}
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  if (!pool) return cudaErrorInvalidValue;
  return hayloft::simt::allocate_in_order("cudaMallocFromPoolAsync", data, bytes, pool, stream);
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  return give_back("cudaFreeAsync", [&](Runtime& runtime) {
    if (!data) return cudaSuccess;
    if (!runtime.known(stream)) return cudaErrorInvalidResourceHandle;
    if (runtime.memory.device_of(data) != stream->device) return cudaErrorInvalidValue;
    runtime.queue_free(stream, data);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return api("cudaMemPoolCreate", [&](Runtime& runtime) {
    if (!pool || !properties || properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice) {
      return cudaErrorInvalidValue;
    }
    const std::uint64_t most = properties->maxSize ? properties->maxSize : std::numeric_limits<std::uint64_t>::max();
    *pool =
        new CUmemPoolHandle_st{properties->location.id, 0, std::make_shared<PoolMemory>(properties->location.id, most)};
    runtime.pools.push_back((*pool)->memory);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return give_back("cudaMemPoolDestroy", [&](Runtime&) {
    if (!pool) return cudaErrorInvalidValue;
    delete pool;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return api("cudaMemPoolSetAttribute", [&](Runtime&) {
    if (!pool || !value) return cudaErrorInvalidValue;
    if (attribute == cudaMemPoolAttrReservedMemHigh) pool->memory->forget_most_held();
    if (attribute == cudaMemPoolAttrReleaseThreshold) pool->release_threshold = *static_cast<std::uint64_t*>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return api("cudaMemPoolGetAttribute", [&](Runtime&) {
    if (!pool || !value) return cudaErrorInvalidValue;
    auto& number = *static_cast<std::uint64_t*>(value);
    switch (attribute) {
      case cudaMemPoolAttrReleaseThreshold:
        number = pool->release_threshold;
        return cudaSuccess;
      case cudaMemPoolAttrReservedMemCurrent:
        number = pool->memory->held();
        return cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh:
        number = pool->memory->most_held();
        return cudaSuccess;
      default:
        return cudaErrorNotSupported;
    }
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  return api("cudaMemPoolTrimTo", [&](Runtime&) {
    if (!pool) return cudaErrorInvalidValue;
    pool->memory->trim();
    return cudaSuccess;
  });
}
