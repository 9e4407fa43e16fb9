#include <cstring>
#include <string>
#include <utility>

#include "tests/simt/device/runtime.h"

// The device and what went wrong.
namespace hayloft::simt {
namespace {

cudaDeviceProp properties_of(const Device& device) {
  cudaDeviceProp p{};
  std::strncpy(p.name, "SIMT shim", sizeof p.name - 1);
  p.totalGlobalMem = device.memory_bytes;
  p.major = device.major;
  p.minor = device.minor;
  p.multiProcessorCount = device.multiprocessors;
  return p;
}

int value_of(const Device& device, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      return device.multiprocessors;
    case cudaDevAttrComputeCapabilityMajor:
      return device.major;
    case cudaDevAttrComputeCapabilityMinor:
      return device.minor;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(device.shared_bytes);
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrMemoryPoolsSupported:
      return 1;
  }
  return 0;
}

cudaError_t available(const Device& device, int index) {
  if (device.count == 0) return cudaErrorNoDevice;
  return index < 0 || index >= device.count ? cudaErrorInvalidDevice : cudaSuccess;
}

}  // namespace
}  // namespace hayloft::simt

using hayloft::simt::api;
using hayloft::simt::available;
using hayloft::simt::Runtime;

cudaError_t cudaGetDeviceCount(int* count) {
  return api("cudaGetDeviceCount", [&](Runtime& runtime) {
    *count = runtime.device.count;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return api("cudaSetDevice", [&](Runtime& runtime) {
    const cudaError_t error = available(runtime.device, device);
    if (error == cudaSuccess) Runtime::current() = device;
    return error;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return api("cudaGetDevice", [&](Runtime& runtime) {
    *device = Runtime::current();
    return available(runtime.device, *device);
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api("cudaGetDeviceProperties", [&](Runtime& runtime) {
    *properties = hayloft::simt::properties_of(runtime.device);
    return available(runtime.device, device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api("cudaDeviceGetAttribute", [&](Runtime& runtime) {
    *value = hayloft::simt::value_of(runtime.device, attribute);
    return available(runtime.device, device);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  return api("cudaDeviceGetPCIBusId", [&](Runtime& runtime) {
    const std::string text = "0000:0" + std::to_string(device + 1) + ":00.0";
    if (bytes <= static_cast<int>(text.size())) return cudaErrorInvalidValue;
    std::memcpy(id, text.c_str(), text.size() + 1);
    return available(runtime.device, device);
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api("cudaDriverGetVersion", [&](Runtime& runtime) {
    *version = runtime.device.driver_version;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return api("cudaRuntimeGetVersion", [&](Runtime&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const cudaError_t error = std::exchange(runtime.last_error, cudaSuccess);
  return runtime.sticky != cudaSuccess ? runtime.sticky : error;
}

// The name is the text as well: what an error means is said by gpu/cuda/api/check.h.
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

const char* cudaGetErrorName(cudaError_t error) {
#define HAYLOFT_SIMT_NAME(name) \
  case name:                    \
    return #name;
  switch (error) {
    HAYLOFT_SIMT_NAME(cudaSuccess)
    HAYLOFT_SIMT_NAME(cudaErrorInvalidValue)
    HAYLOFT_SIMT_NAME(cudaErrorMemoryAllocation)
    HAYLOFT_SIMT_NAME(cudaErrorInitializationError)
    HAYLOFT_SIMT_NAME(cudaErrorInvalidConfiguration)
    HAYLOFT_SIMT_NAME(cudaErrorInvalidMemcpyDirection)
    HAYLOFT_SIMT_NAME(cudaErrorStubLibrary)
    HAYLOFT_SIMT_NAME(cudaErrorInsufficientDriver)
    HAYLOFT_SIMT_NAME(cudaErrorDevicesUnavailable)
    HAYLOFT_SIMT_NAME(cudaErrorInvalidDeviceFunction)
    HAYLOFT_SIMT_NAME(cudaErrorNoDevice)
    HAYLOFT_SIMT_NAME(cudaErrorInvalidDevice)
    HAYLOFT_SIMT_NAME(cudaErrorNoKernelImageForDevice)
    HAYLOFT_SIMT_NAME(cudaErrorECCUncorrectable)
    HAYLOFT_SIMT_NAME(cudaErrorUnsupportedPtxVersion)
    HAYLOFT_SIMT_NAME(cudaErrorInvalidResourceHandle)
    HAYLOFT_SIMT_NAME(cudaErrorNotReady)
    HAYLOFT_SIMT_NAME(cudaErrorIllegalAddress)
    HAYLOFT_SIMT_NAME(cudaErrorLaunchOutOfResources)
    HAYLOFT_SIMT_NAME(cudaErrorLaunchTimeout)
    HAYLOFT_SIMT_NAME(cudaErrorContextIsDestroyed)
    HAYLOFT_SIMT_NAME(cudaErrorAssert)
    HAYLOFT_SIMT_NAME(cudaErrorHostMemoryAlreadyRegistered)
    HAYLOFT_SIMT_NAME(cudaErrorHostMemoryNotRegistered)
    HAYLOFT_SIMT_NAME(cudaErrorHardwareStackError)
    HAYLOFT_SIMT_NAME(cudaErrorIllegalInstruction)
    HAYLOFT_SIMT_NAME(cudaErrorMisalignedAddress)
    HAYLOFT_SIMT_NAME(cudaErrorLaunchFailure)
    HAYLOFT_SIMT_NAME(cudaErrorNotPermitted)
    HAYLOFT_SIMT_NAME(cudaErrorNotSupported)
    HAYLOFT_SIMT_NAME(cudaErrorSystemNotReady)
    HAYLOFT_SIMT_NAME(cudaErrorSystemDriverMismatch)
    HAYLOFT_SIMT_NAME(cudaErrorCompatNotSupportedOnDevice)
    HAYLOFT_SIMT_NAME(cudaErrorUnknown)
  }
#undef HAYLOFT_SIMT_NAME
  return "unrecognized error code";
}
