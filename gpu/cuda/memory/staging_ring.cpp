#include "gpu/cuda/memory/staging_ring.h"

#include "gpu/cuda/api/step_graphs.h"

namespace hayloft::gpu::cuda {

StagingRing::StagingRing(std::uint64_t piece_bytes, int pieces) : piece_bytes_(piece_bytes) {
  const std::uint64_t bytes = piece_bytes * static_cast<std::uint64_t>(pieces);
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc", bytes);
  memory_ = static_cast<std::byte*>(memory);
  try {
    for (int i = 0; i < pieces; ++i) {
      cudaEvent_t event;
      HAYLOFT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      events_.push_back(event);
    }
  } catch (...) {
    close();
    throw;
  }
}

StagingRing::~StagingRing() {
  close();
}

void StagingRing::close() noexcept {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  cudaFreeHost(memory_);
}

std::byte* StagingRing::acquire() {
  HAYLOFT_CUDA(cudaEventSynchronize(events_[next_]));  // of an event never recorded there is nothing to wait for
  return memory_ + next_ * piece_bytes_;
}

void StagingRing::release(cudaStream_t stream) {
  HAYLOFT_CUDA(cudaEventRecord(events_[next_], in_order(stream)));
  next_ = (next_ + 1) % events_.size();
}

}  // namespace hayloft::gpu::cuda
