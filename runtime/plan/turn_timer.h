#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "gpu/backend.h"
#include "offload/clock.h"

namespace hayloft::runtime::plan {

// Times operations of a backend, turn by turn, and shares out the time there is among the measurements still to come.
// Not thread-safe; the backend must outlive it.
class TurnTimer {
 public:
  // measurements: how many medians will be asked for, all together in about so many seconds.
  TurnTimer(gpu::Backend& backend, double seconds, int measurements)
      : backend_(backend),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
        left_(measurements) {}

  gpu::Backend& backend() const { return backend_; }
  gpu::Stream stream() const { return stream_; }

  // Median seconds of run(turn), after one that is not counted. A neighbour on the machine makes some runs slow, and at
  // least three show which.
  template <class Run>
  double median(const Run& run) {
    const Clock::time_point start = Clock::now();
    const Clock::time_point enough = start + (end_ - start) / std::max(1, left_--);
    run(0);
    backend_.synchronize(stream_);
    std::vector<double> times;
    for (int turn = 1; times.size() < 3 || (Clock::now() < enough && times.size() < 10000); ++turn) {
      const Clock::time_point before = Clock::now();
      run(turn);
      backend_.synchronize(stream_);
      times.push_back(seconds_since(before));
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return std::max(times[times.size() / 2], 1e-9);
  }

  template <class T>
  gpu::Buffer on_device(std::span<const T> host) const {
    gpu::Buffer buffer = backend_.allocate(host.size_bytes(), stream_);
    backend_.to_device(buffer.as<void>(), host.data(), host.size_bytes(), stream_);
    backend_.synchronize(stream_);
    return buffer;
  }

 private:
  gpu::Backend& backend_;
  Clock::time_point end_;
  int left_;
  gpu::Stream stream_ = backend_.stream();
};

inline double gigabytes_per_second(double bytes, double seconds) {
  return bytes / seconds / 1e9;
}

}  // namespace hayloft::runtime::plan
