#pragma once

#include <cstdint>

#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// Host memory to the device. The memory may be changed or freed on return; little of it travels with the commands of
// the stream, so that nobody waits, and for more the caller waits until it is there.
void upload(void* device, const void* host, std::uint64_t bytes, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
