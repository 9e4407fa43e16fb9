#pragma once

#include <cstdint>
#include <vector>

#include "gpu/cuda/api/step_graphs.h"

namespace hayloft::gpu::cuda {

// A little of the device's memory that the host needs to know before it can go on: queued behind what is on the stream,
// and waited for.
template <class T>
std::vector<T> fetch(const T* device, std::int64_t count, cudaStream_t stream) {
  std::vector<T> host(static_cast<std::size_t>(count));
  const std::uint64_t bytes = host.size() * sizeof(T);
  check(cudaMemcpyAsync(host.data(), device, bytes, cudaMemcpyDeviceToHost, in_order(stream)), "cudaMemcpyAsync",
        bytes);
  HAYLOFT_CUDA(cudaStreamSynchronize(stream));
  return host;
}

}  // namespace hayloft::gpu::cuda
