#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>

namespace hayloft::simt {

// Counts the memory that a pool of CUDA's holds: it grows in steps, up to its largest size. What is freed on a stream
// serves that stream again at once, and the others when the stream has come past it; CUDA may make one stream wait for
// another instead.
class PoolMemory {
 public:
  PoolMemory(int device, std::uint64_t most) : device_(device), most_(most) {}
  int device() const { return device_; }

  // left: of the device, for the pool to grow.
  bool take(std::uint64_t bytes, cudaStream_t stream, std::uint64_t left) {
    std::uint64_t& own = freed_[stream];
    const std::uint64_t again = std::min(bytes, own);
    const std::uint64_t spare = std::min(bytes - again, idle_);
    const std::uint64_t growth = (bytes - again - spare + step - 1) / step * step;
    if (growth > std::min(left, most_ - held_)) return false;
    own -= again;
    idle_ = idle_ + growth - (bytes - again);
    held_ += growth;
    most_held_ = std::max(most_held_, held_);
    return true;
  }
  void free(std::uint64_t bytes, cudaStream_t stream) { freed_[stream] += bytes; }
  // The stream has come past free() of so many bytes, as far as they do not serve it again.
  void arrive(std::uint64_t bytes, cudaStream_t stream) {
    std::uint64_t& own = freed_[stream];
    const std::uint64_t unused = std::min(bytes, own);
    own -= unused;
    idle_ += unused;
  }
  void trim() {
    held_ -= idle_ / step * step;
    idle_ %= step;
  }

  std::uint64_t held() const { return held_; }
  std::uint64_t most_held() const { return most_held_; }
  void forget_most_held() { most_held_ = held_; }

 private:
  static constexpr std::uint64_t step = std::uint64_t{32} << 20;

  const int device_;
  const std::uint64_t most_;
  std::uint64_t held_ = 0;
  std::uint64_t most_held_ = 0;
  std::uint64_t idle_ = 0;                       // of held_, for any stream
  std::map<cudaStream_t, std::uint64_t> freed_;  // of held_, for this one
};

}  // namespace hayloft::simt
