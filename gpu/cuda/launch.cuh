#pragma once

#include <utility>

#include "gpu/backend.h"
#include "gpu/cuda/check.cuh"

// The one door for kernels.
namespace hayloft::gpu::cuda {

inline cudaStream_t native(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

struct Shape {
  dim3 blocks;
  dim3 threads;
  unsigned shared_bytes = 0;  // dynamic; more than 48 KiB only after allow_shared()
};

// Launches in stream order; an empty grid launches nothing. Throws Error naming the kernel. Arguments are converted to
// the kernel's parameter types.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Shape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  if (shape.blocks.x == 0 || shape.blocks.y == 0 || shape.blocks.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

// Raises the kernel's limit of dynamic shared memory. Throws Error when the device has less.
template <class... Parameters>
void allow_shared(const char* name, void (*kernel)(Parameters...), unsigned bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        name);
}

inline unsigned blocks_for(std::int64_t items, int per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace hayloft::gpu::cuda
