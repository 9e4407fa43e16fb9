#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/backend.h"
#include "offload/clock.h"

namespace hayloft::runtime::plan {

// A measurement's subject, and how long its turns took.
struct Timing {
  std::string what;  // the field of a profile, as "dense_GBps"
  int head_dim = 0;
  int group = 0;
  bool small = false;  // over the small footprint
  int runs = 0;
  // Seconds: the shortest, the lower quartile, the median, the upper quartile, the longest.
  double least = 0, low = 0, median = 0, high = 0, most = 0;
};

// Times operations of a backend, turn by turn, and shares out the time there is among the measurements still to come.
// Not thread-safe; the backend must outlive it.
class TurnTimer {
 public:
  // measurements: how many medians will be asked for, all together in about so many seconds.
  TurnTimer(gpu::Backend& backend, double seconds, int measurements)
      : backend_(backend),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
        left_(measurements) {}

  // Says what the next medians are of: heads of that dimension and group until it is said again, and each of its own.
  void about(int head_dim, int group, bool small) {
    next_.head_dim = head_dim;
    next_.group = group;
    next_.small = small;
  }
  void measuring(std::string what) { next_.what = std::move(what); }
  // Returns those that had a name, in the order in which they were taken.
  const std::vector<Timing>& timings() const { return timings_; }

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
    for (double& time : times) time = std::max(time, 1e-9);
    std::sort(times.begin(), times.end());
    const std::size_t n = times.size();
    note({next_.what, next_.head_dim, next_.group, next_.small, static_cast<int>(n), times.front(), times[n / 4],
          times[n / 2], times[n * 3 / 4], times.back()});
    return times[n / 2];
  }

  template <class T>
  gpu::Buffer on_device(std::span<const T> host) const {
    gpu::Buffer buffer = backend_.allocate(host.size_bytes(), stream_);
    backend_.to_device(buffer.as<void>(), host.data(), host.size_bytes(), stream_);
    backend_.synchronize(stream_);
    return buffer;
  }

 private:
  void note(Timing timing) {
    if (!timing.what.empty()) timings_.push_back(std::move(timing));
    next_.what.clear();
  }

  gpu::Backend& backend_;
  Clock::time_point end_;
  int left_;
  gpu::Stream stream_ = backend_.stream();
  Timing next_;
  std::vector<Timing> timings_;
};

inline double gigabytes_per_second(double bytes, double seconds) {
  return bytes / seconds / 1e9;
}

}  // namespace hayloft::runtime::plan
