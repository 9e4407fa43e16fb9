#include "index/scan/run_cache.h"

#include <algorithm>
#include <limits>

namespace hayloft::index {

int RunCache::read(std::span<const std::int32_t> runs) {
  const auto read_now = [&](std::int32_t run) { return std::find(runs.begin(), runs.end(), run) != runs.end(); };
  for (std::size_t run = 0; run < use_.size(); ++run) {
    use_[run] = run_use_left * use_[run] + (read_now(static_cast<std::int32_t>(run)) ? 1.0f : 0.0f);
  }
  int hits = 0;
  std::vector<std::int32_t> missing;
  for (const std::int32_t run : runs) {
    if (std::find(held_.begin(), held_.end(), run) != held_.end()) {
      ++hits;
    } else {
      missing.push_back(run);
    }
  }
  for (const std::int32_t run : missing) {
    float least = std::numeric_limits<float>::infinity();
    std::size_t slot = held_.size();
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const float use = held_[i] < 0         ? -1.0f
                        : read_now(held_[i]) ? std::numeric_limits<float>::infinity()
                                             : use_[static_cast<std::size_t>(held_[i])];
      if (use < least) least = use, slot = i;
    }
    if (slot < held_.size() && least < use_[static_cast<std::size_t>(run)]) held_[slot] = run;
  }
  return hits;
}

}  // namespace hayloft::index
