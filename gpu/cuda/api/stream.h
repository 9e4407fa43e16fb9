#pragma once

#include <mutex>

#include "gpu/cuda/api/step_graphs.h"

// Owners of streams and of places in their order.
namespace hayloft::gpu::cuda {

// Non-blocking: nothing is ordered with the default stream.
class OwnedStream {
 public:
  OwnedStream() { HAYLOFT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  cudaStream_t stream_ = nullptr;
};

// A place in a stream's order that others wait for.
class Event {
 public:
  Event() : Event(cudaEventDisableTiming) {}
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { HAYLOFT_CUDA(cudaEventRecord(event_, in_order_quietly(stream))); }
  // The stream waits, not the host.
  void wait(cudaStream_t stream) const { HAYLOFT_CUDA(cudaStreamWaitEvent(in_order_quietly(stream), event_, 0)); }

 protected:
  explicit Event(unsigned flags) { HAYLOFT_CUDA(cudaEventCreateWithFlags(&event_, flags)); }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Makes one stream wait for another. One event serves for all orderings: a stream that waits for it waits for what was
// recorded when the wait was queued, whatever is recorded later. Thread-safe.
class StreamOrder {
 public:
  // `after` waits for everything queued on `before` so far; nobody waits on the host.
  void operator()(cudaStream_t before, cudaStream_t after) {
    const std::lock_guard lock(mutex_);
    event_.record(before);
    event_.wait(after);
  }

 private:
  std::mutex mutex_;
  Event event_;
};

// One that knows when the stream came past it.
class TimedEvent : public Event {
 public:
  TimedEvent() : Event(cudaEventDefault) {}
  // Both have been recorded, and their streams have come past them.
  double seconds_since(const TimedEvent& begin) const {
    float ms = 0;
    HAYLOFT_CUDA(cudaEventElapsedTime(&ms, begin.event(), event()));
    return static_cast<double>(ms) * 1e-3;
  }
};

}  // namespace hayloft::gpu::cuda
