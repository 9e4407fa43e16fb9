#pragma once

#include "gpu/cuda/kernels/intrinsics.cuh"

namespace hayloft::gpu::cuda {

// Tells all threads of a block whether it is the last of so many blocks of a launch that come here with one counter,
// u32 in device memory, 0 before the launch. The last one then sees all that the others had written before they came;
// nobody waits. Contains barriers. `last`: shared.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks, bool& last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // by this thread of what the barrier has shown it of others
    last = atomic_add(counter, 1u) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace hayloft::gpu::cuda
