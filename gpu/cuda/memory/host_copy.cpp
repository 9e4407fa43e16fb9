#include "gpu/cuda/memory/host_copy.h"

#include "gpu/cuda/api/step_graphs.h"
#include "gpu/cuda/memory/host_pins.h"

namespace hayloft::gpu::cuda {

void copy_to_device(const HostPins& pins, void* device, const void* host, std::uint64_t bytes, cudaStream_t stream) {
  auto* to = static_cast<std::byte*>(device);
  const auto* from = static_cast<const std::byte*>(host);
  for (std::uint64_t part = 0; bytes > 0; bytes -= part, to += part, from += part) {
    part = pins.copyable(from, bytes);
    check(cudaMemcpyAsync(to, from, part, cudaMemcpyHostToDevice, in_order(stream)), "cudaMemcpyAsync", part);
  }
}

void copy_to_host(const HostPins& pins, void* host, const void* device, std::uint64_t bytes, cudaStream_t stream) {
  auto* to = static_cast<std::byte*>(host);
  const auto* from = static_cast<const std::byte*>(device);
  for (std::uint64_t part = 0; bytes > 0; bytes -= part, to += part, from += part) {
    part = pins.copyable(to, bytes);
    check(cudaMemcpyAsync(to, from, part, cudaMemcpyDeviceToHost, in_order(stream)), "cudaMemcpyAsync", part);
  }
}

void copy_rows_to_device(const HostPins& pins, std::byte* device, std::uint64_t device_pitch, const std::byte* host,
                         std::uint64_t host_pitch, std::uint64_t width, std::uint64_t rows, cudaStream_t stream) {
  for (std::uint64_t row = 0; row < rows;) {
    std::byte* const to = device + row * device_pitch;
    const std::byte* const from = host + row * host_pitch;
    const std::uint64_t copyable = pins.copyable(from, (rows - row - 1) * host_pitch + width);
    if (copyable < width) {
      copy_to_device(pins, to, from, width, stream);
      ++row;
      continue;
    }
    const std::uint64_t whole = (copyable - width) / host_pitch + 1;
    HAYLOFT_CUDA(
        cudaMemcpy2DAsync(to, device_pitch, from, host_pitch, width, whole, cudaMemcpyHostToDevice, in_order(stream)));
    row += whole;
  }
}

}  // namespace hayloft::gpu::cuda
