#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "gpu/cuda/check.cuh"

namespace hayloft::gpu::cuda {

// Holds a stream until it is opened: what is queued behind it then starts at once, not as fast as the host queues it.
// A driver that waits for the stream meanwhile, because its queue is full or because something used for the first time
// is loaded when the device is idle, would wait for ever; so the gate opens by itself when its patience is at an end.
// When it is destroyed, opened or not, it has let everything through.
class Gate {
 public:
  explicit Gate(cudaStream_t stream, std::chrono::milliseconds patience = std::chrono::seconds(2))
      : stream_(stream), patience_(patience) {
    HAYLOFT_CUDA(cudaLaunchHostFunc(stream, wait, this));
  }
  ~Gate() {
    open();
    cudaStreamSynchronize(stream_);  // wait() reads what goes now; a lost device does not call it any more
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // False when the gate had opened by itself before.
  bool open() {
    State closed = State::closed;
    return state_.compare_exchange_strong(closed, State::open) || closed == State::open;
  }

 private:
  enum class State { closed, open, gave_up };

  static void wait(void* data) {
    Gate& gate = *static_cast<Gate*>(data);
    const auto end = std::chrono::steady_clock::now() + gate.patience_;
    while (gate.state_.load(std::memory_order_acquire) == State::closed) {
      State closed = State::closed;
      if (std::chrono::steady_clock::now() >= end) gate.state_.compare_exchange_strong(closed, State::gave_up);
      std::this_thread::yield();
    }
  }

  const cudaStream_t stream_;
  const std::chrono::milliseconds patience_;
  std::atomic<State> state_ = State::closed;
};

}  // namespace hayloft::gpu::cuda
