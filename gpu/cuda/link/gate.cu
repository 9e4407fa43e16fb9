#include "gpu/cuda/link/gate.h"

#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/kernels/launch.h"

namespace hayloft::gpu::cuda {
namespace {

__global__ void hold_stream(GateState* state, std::uint64_t patience_ns) {
  const volatile unsigned* const open = &state->open;
  const std::uint64_t end = nanoseconds() + patience_ns;
  while (*open == 0) {
    if (nanoseconds() < end) continue;
    state->gave_up = 1;
    return;
  }
}

}  // namespace

Gate::Gate(cudaStream_t stream, std::chrono::nanoseconds patience) : stream_(stream) {
  void* memory = nullptr;
  HAYLOFT_CUDA(cudaHostAlloc(&memory, sizeof(GateState), cudaHostAllocMapped));
  state_.reset(new (memory) GateState);
  launch("hold_stream", hold_stream, {dim3(1), dim3(1)}, stream, state_.get(),
         static_cast<std::uint64_t>(patience.count()));
}

}  // namespace hayloft::gpu::cuda
