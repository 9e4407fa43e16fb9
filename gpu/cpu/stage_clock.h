#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

#include "gpu/backend.h"

namespace hayloft::gpu {

// Measures how long operations take, while somebody wants to know: Backend::time_stages(). Thread-safe.
class StageClock {
 public:
  void run(bool on);                     // forgets what was measured so far
  std::vector<StageTime> times() const;  // sums by name, in order of first appearance

 private:
  friend class Stage;
  void add(const char* name, double seconds);

  std::atomic<bool> running_ = false;
  mutable std::mutex mutex_;
  std::vector<StageTime> sums_;
};

// Its life is one stage, under a name that is a literal.
class Stage {
 public:
  Stage(StageClock& clock, const char* name) : clock_(clock.running_ ? &clock : nullptr), name_(name) {
    if (clock_) begin_ = Clock::now();
  }
  ~Stage() {
    if (clock_) clock_->add(name_, std::chrono::duration<double>(Clock::now() - begin_).count());
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  StageClock* clock_;  // null: nobody wants to know
  const char* name_;
  Clock::time_point begin_;
};

}  // namespace hayloft::gpu
