#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cuda/api/check.h"

namespace hayloft::gpu::cuda {

// Measures how long the parts of operations take on the device, by pairs of events, while somebody wants to know.
// Thread-safe.
class StageClock {
 public:
  ~StageClock();

  void run(bool on);  // forgets what was measured so far
  bool running() const { return running_; }
  cudaEvent_t record(cudaStream_t stream);  // a new event, at this point of the stream
  void note(const char* name, cudaEvent_t begin, cudaEvent_t end);
  // Sums by name, in order of first appearance; waits for what is still to come.
  std::vector<StageTime> times();

 private:
  struct Span {
    const char* name;
    cudaEvent_t begin;
    cudaEvent_t end;
  };
  void forget();

  std::atomic<bool> running_ = false;
  std::mutex mutex_;
  std::vector<Span> spans_;
};

// Makes what is queued on `stream` during its life one part of an operation, under a name that is a literal.
class Stage {
 public:
  Stage(StageClock& clock, const char* name, cudaStream_t stream);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

 private:
  StageClock* clock_;  // null: nobody wants to know
  const char* name_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
};

}  // namespace hayloft::gpu::cuda
