#pragma once

#include <cstdint>
#include <span>
#include <vector>

// Decides which runs of a KV head's columns a device keeps, a run being a whole column or, of columns in planes, one
// plane: those that were read most, counts of which a step leaves 98%. The CUDA backend decides the same to the bit
// (gpu/cuda/kernels/select/place_runs.cuh); here the decision is by itself, so that it can be looked at without a
// device.
namespace hayloft::index {

inline constexpr float run_use_left = 0.98f;  // of a count, at the next step

// Not thread-safe.
class RunCache {
 public:
  RunCache(int runs, int slots) : use_(static_cast<std::size_t>(runs)), held_(static_cast<std::size_t>(slots), -1) {}

  // A step reads these, each once, in this order: how many of them were held. A run that was not takes the first empty
  // slot; else the slot whose run was read least, of several the first, unless that was read as often as itself or is
  // read by this step.
  int read(std::span<const std::int32_t> runs);

 private:
  std::vector<float> use_;
  std::vector<std::int32_t> held_;  // by slot; -1: empty
};

}  // namespace hayloft::index
