#include "gpu/cpu/stage_clock.h"

#include <algorithm>

namespace hayloft::gpu {

void StageClock::run(bool on) {
  const std::lock_guard lock(mutex_);
  sums_.clear();
  running_ = on;
}

std::vector<StageTime> StageClock::times() const {
  const std::lock_guard lock(mutex_);
  return sums_;
}

void StageClock::add(const char* name, double seconds) {
  const std::lock_guard lock(mutex_);
  auto sum = std::find_if(sums_.begin(), sums_.end(), [&](const StageTime& s) { return s.name == name; });
  if (sum == sums_.end()) sum = sums_.insert(sums_.end(), {name, 0, 0});
  sum->seconds += seconds;
  ++sum->times;
}

}  // namespace hayloft::gpu
