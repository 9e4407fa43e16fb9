#include "gpu/cuda/api/stage_clock.h"

#include "gpu/cuda/api/step_graphs.h"

#include <algorithm>

namespace hayloft::gpu::cuda {

StageClock::~StageClock() {
  forget();
}

void StageClock::forget() {
  for (const Span& span : spans_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
  spans_.clear();
}

void StageClock::run(bool on) {
  const std::lock_guard lock(mutex_);
  forget();
  running_ = on;
}

cudaEvent_t StageClock::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  HAYLOFT_CUDA(cudaEventCreate(&event));
  const cudaError_t result = cudaEventRecord(event, in_order(stream));
  if (result != cudaSuccess) cudaEventDestroy(event);
  check(result, "cudaEventRecord");
  return event;
}

void StageClock::note(const char* name, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({name, begin, end});
}

std::vector<StageTime> StageClock::times() {
  const std::lock_guard lock(mutex_);
  std::vector<StageTime> sums;
  for (const Span& span : spans_) {
    HAYLOFT_CUDA(cudaEventSynchronize(span.end));
    float ms = 0;
    HAYLOFT_CUDA(cudaEventElapsedTime(&ms, span.begin, span.end));
    auto sum = std::find_if(sums.begin(), sums.end(), [&](const StageTime& s) { return s.name == span.name; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), {span.name, 0, 0});
    sum->seconds += static_cast<double>(ms) * 1e-3;
    ++sum->times;
  }
  return sums;
}

Stage::Stage(StageClock& clock, const char* name, cudaStream_t stream)
    : clock_(clock.running() ? &clock : nullptr), name_(name), stream_(stream) {
  if (clock_) begin_ = clock_->record(stream);
}

Stage::~Stage() {
  if (!clock_) return;
  try {
    clock_->note(name_, begin_, clock_->record(stream_));
  } catch (const std::exception&) {  // a device in trouble: the next checked call says so
    cudaEventDestroy(begin_);
  }
}

}  // namespace hayloft::gpu::cuda
