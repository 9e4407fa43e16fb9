#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// In pinned memory, which both sides see change.
struct GateState {
  unsigned open = 0;     // set by the host
  unsigned gave_up = 0;  // set by the device
};

// Holds a stream until it is opened: what is queued behind it then starts at once, not as fast as the host queues it.
// A kernel holds it, not a host function, in whose course the driver may keep other calls waiting. A driver that waits
// for the stream meanwhile, because its queue is full or because something used for the first time is loaded when the
// device is idle, would wait for ever; so the gate opens by itself when its patience is at an end. When it is
// destroyed, opened or not, it has let everything through.
class Gate {
 public:
  explicit Gate(cudaStream_t stream, std::chrono::nanoseconds patience = std::chrono::seconds(2));
  ~Gate() {
    open();
    cudaStreamSynchronize(stream_);  // the kernel reads what goes now
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() { std::atomic_ref(state_->open).store(1, std::memory_order_release); }
  // Returns whether it opened by itself; known when the stream has come past it.
  bool gave_up() const { return std::atomic_ref(state_->gave_up).load(std::memory_order_acquire) != 0; }

 private:
  struct Free {
    void operator()(GateState* state) const { cudaFreeHost(state); }
  };

  const cudaStream_t stream_;
  std::unique_ptr<GateState, Free> state_;
};

}  // namespace hayloft::gpu::cuda
