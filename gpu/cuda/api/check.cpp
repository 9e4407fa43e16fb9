#include "gpu/cuda/api/check.h"

#include <string>
#include <string_view>

#include "gpu/cuda/api/refuse.h"
#include "offload/text/format.h"

namespace hayloft::gpu::cuda {
namespace {

// Returns whether every further call fails until the process ends.
bool lost(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Returns the two versions of CUDA that do not fit together, and what to do; empty without a driver.
std::string driver_too_old() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 || driver >= CUDART_VERSION) return {};
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  return "the NVIDIA driver is too old for this build of hayloft: it speaks CUDA " + version(driver) +
         ", and the build needs " + version(CUDART_VERSION) +
         "; install a newer driver (580 for CUDA 13; nvidia-smi shows which there is), or build with the nvcc of "
         "CUDA " +
         version(driver) + ", or use --device cpu";
}

// Returns what a user can do about it, said after what happened. Null: nothing is known that would help.
const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "the NVIDIA driver is missing or too old for this build of hayloft; install a newer one (nvidia-smi shows "
             "which there is), or use --device cpu";
    case cudaErrorNoDevice:
      return "this process sees no NVIDIA GPU (look at nvidia-smi and CUDA_VISIBLE_DEVICES); use --device cpu";
    case cudaErrorStubLibrary:
      return "libcuda.so is the stub that programs are linked with, not the driver's; take its folder out of "
             "LD_LIBRARY_PATH, or use --device cpu";
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "the NVIDIA driver and its libraries do not fit together, as after an update without a restart; restart "
             "the machine, or take a cuda-compat folder out of LD_LIBRARY_PATH, or use --device cpu";
    case cudaErrorSystemNotReady:
      return "the machine's GPUs are not ready; where they are joined by NVSwitch, start nvidia-fabricmanager, or use "
             "--device cpu";
    case cudaErrorMemoryAllocation:
      return "the device has no memory left, which other programs use too; lower --gpu-memory or the context";
    case cudaErrorDevicesUnavailable:
      return "another process has the device for itself; end it, or use --device cpu";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      return "this build of hayloft has no code for this GPU; build with its architecture in "
             "HAYLOFT_CUDA_ARCHITECTURES, or use --device cpu";
    default:
      break;
  }
  return lost(error) ? "the device is lost to this process; saved files are intact, so run again (the kernel's log, "
                       "dmesg, may say more)"
                     : nullptr;
}

const char* name(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "not initialised, perhaps for lack of device memory; lower --gpu-memory";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "out of memory; lower --gpu-memory or the context";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "invalid value";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "this GPU is too old for it";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "execution failed; saved files are intact, so run again";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "this GPU and its cuBLAS do not multiply these types; use a model whose weights are f16, or --device cpu";
    default:
      return "failed";
  }
}

// From the repository's root on: where the sources lay when they were compiled is nobody's business.
std::string place(const std::source_location& where) {
  const std::string_view file = where.file_name();
  const std::size_t root = file.rfind("gpu/cuda/");
  return std::string(file.substr(root == std::string_view::npos ? 0 : root)) + ":" + std::to_string(where.line());
}

}  // namespace

void check(cudaError_t result, const char* call, std::uint64_t bytes, std::source_location where) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // an error that passes must not be found again by the next call
  const char* what_to_do = advice(result);
  std::string what = what_to_do ? what_to_do : cudaGetErrorString(result);
  if (result == cudaErrorInsufficientDriver) {
    if (const std::string versions = driver_too_old(); !versions.empty()) what = versions;
  }
  const std::string message = "CUDA: " + what + " (" + cudaGetErrorName(result) + " in " + call +
                              (bytes ? " of " + format_bytes(bytes) : "") + ", " + place(where) + ")";
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver || result == cudaErrorStubLibrary) {
    throw_no_device(message);
  }
  if (lost(result)) throw_device_lost(message);
  if (result == cudaErrorMemoryAllocation) throw_no_memory(message);
  throw_error(message);
}

void check(cublasStatus_t result, const char* call, std::source_location where) {
  if (result == CUBLAS_STATUS_SUCCESS) return;
  refuse("cuBLAS: ", name(result), " (status ", static_cast<int>(result), " in ", call, ", ", place(where), ")");
}

}  // namespace hayloft::gpu::cuda
