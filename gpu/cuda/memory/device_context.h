#pragma once

#include <cstdint>

#include "gpu/cuda/api/stream.h"
#include "gpu/cuda/memory/device_arena.h"

namespace hayloft::gpu::cuda {

class HostPins;  // gpu/cuda/memory/host_pins.h

// One device's memory and streams.
struct DeviceContext {
  int device;
  cudaStream_t compute;  // what Backend::stream() is
  cudaStream_t copies;   // host to device
  DeviceArena& arena;    // all device memory, within a budget
  HostPins& pins;        // host memory that the device reads in place
  StreamOrder& order;    // order(before, after)
  StepGraphs& graphs;    // of the compute stream
};

// Device memory for the length of an operation: allocated and freed in stream order, so that freeing it while kernels
// that use it are still queued is right. Throws Error when the budget is exhausted.
template <class T>
class Scratch {
 public:
  Scratch(const DeviceContext& context, std::int64_t count, cudaStream_t stream,
          DeviceArena::Purpose purpose = DeviceArena::Purpose::step)
      : arena_(&context.arena),
        bytes_(static_cast<std::uint64_t>(count) * sizeof(T)),
        stream_(stream),
        data_(static_cast<T*>(context.arena.allocate(bytes_, stream, purpose))) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { arena_->free(data_, bytes_, stream_); }

  T* data() const { return data_; }
  operator T*() const { return data_; }  // NOLINT(google-explicit-constructor): a pointer wherever a kernel wants one

 private:
  DeviceArena* arena_;
  std::uint64_t bytes_;
  cudaStream_t stream_;
  T* data_;
};

}  // namespace hayloft::gpu::cuda
