#include <memory>
#include <utility>

#include "tests/simt/device/machine.h"
#include "tests/simt/device/runtime.h"
#include "tests/simt/device/symbols.h"
#include "tests/simt/ptx/launch.h"

// Kernels.
namespace hayloft::simt {
namespace {

constexpr std::size_t default_shared_bytes = std::size_t{48} << 10;

bool fits(const dim3& v, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
  return v.x >= 1 && v.y >= 1 && v.z >= 1 && v.x <= x && v.y <= y && v.z <= z;
}

}  // namespace

cudaError_t queue_bound(Runtime& runtime, const cudaLaunchConfig_t& config, const void* kernel, BoundKernel bound) {
  const std::uint64_t threads = std::uint64_t{config.blockDim.x} * config.blockDim.y * config.blockDim.z;
  if (!fits(config.blockDim, 1024, 1024, 64) || threads > 1024) return cudaErrorInvalidConfiguration;
  if (!fits(config.gridDim, 0x7fffffff, 0xffff, 0xffff)) return cudaErrorInvalidConfiguration;
  const auto raised = runtime.shared_limits.find(kernel);
  const std::size_t limit = raised == runtime.shared_limits.end() ? default_shared_bytes : raised->second;
  if (config.dynamicSmemBytes > limit) return cudaErrorInvalidValue;
  const std::size_t with_static = raised == runtime.shared_limits.end() ? limit : runtime.device.shared_bytes;
  if (!runtime.known(config.stream)) return cudaErrorInvalidResourceHandle;
  if (runtime.launches[kernel]++ == 0 && runtime.held()) {
    runtime.kernel_failed(function_name(kernel) + ": launched first behind a kernel that holds its stream");
    return cudaErrorLaunchFailure;
  }
  const Grid grid{config.gridDim, config.blockDim, config.dynamicSmemBytes};
  const auto run = [&runtime, grid, kernel, with_static, bound = std::move(bound)] {
    const std::string failure = ptx::enabled() ? ptx::launch(function_name(kernel), grid, bound.arguments, with_static,
                                                             runtime.memory, runtime.random)
                                               : run_grid(grid, kernel, bound.body, runtime.random);
    if (!failure.empty()) runtime.kernel_failed(function_name(kernel) + ": " + failure);
  };
  runtime.queue_kernel(config.stream, kernel, run);
  return cudaSuccess;
}

cudaError_t queue_kernel(const cudaLaunchConfig_t& config, const void* kernel, BoundKernel bound, BindKernel bind) {
  return api("cudaLaunchKernelEx", [&](Runtime& runtime) {
    runtime.binders[kernel] = bind;
    return queue_bound(runtime, config, kernel, std::move(bound));
  });
}

std::int64_t launches() {
  return launches("");
}

std::int64_t launches(std::string_view kernel) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  std::int64_t count = 0;
  for (const auto& [address, n] : runtime.launches) {
    if (kernel.empty() || function_name(address).find(kernel) != std::string::npos) count += n;
  }
  return count;
}

}  // namespace hayloft::simt

using hayloft::simt::api;
using hayloft::simt::Runtime;

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return api("cudaFuncGetAttributes", [&](Runtime& runtime) {
    if (!attributes || !kernel) return cudaErrorInvalidDeviceFunction;
    const auto raised = runtime.shared_limits.find(kernel);
    std::size_t own = 0;
    for (const auto& variable : hayloft::simt::shared_variables(kernel)) own += variable.bytes;
    const std::size_t unraised =
        hayloft::simt::default_shared_bytes - std::min(own, hayloft::simt::default_shared_bytes);
    *attributes = {own, static_cast<int>(raised == runtime.shared_limits.end() ? unraised : raised->second)};
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return api("cudaFuncSetAttribute", [&](Runtime& runtime) {
    if (!kernel) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::size_t>(value) > runtime.device.shared_bytes) return cudaErrorInvalidValue;
    runtime.shared_limits[kernel] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}
