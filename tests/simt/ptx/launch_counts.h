#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simt/ptx/grid_run.h"

namespace hayloft::simt::ptx {

// The sums of what all launches of one kernel have taken.
struct LaunchCounts {
  std::uint64_t launches = 0;
  std::uint64_t blocks = 0;
  std::uint64_t warps = 0;
  unsigned threads = 0;               // of a block, the most
  std::size_t dynamic_shared = 0;     // bytes, the most
  std::uint64_t instructions = 0;     // of threads
  std::vector<std::uint64_t> issues;  // of warps, per instruction of the kernel
  Traffic traffic;

  void add(const Grid& grid, const RunResult& result);
};

// Launches, blocks, instructions of threads, the kernel's name.
std::string counts_line(const LaunchCounts& counts, const std::string& file, const Kernel& kernel);
// The PTX file, and the lines of it that threads have come to.
std::string reached_line(const LaunchCounts& counts, const std::string& file, const Kernel& kernel);
// JSON: everything, with the issues of warps by line of the PTX file.
std::string costs_line(const LaunchCounts& counts, const std::string& file, const Kernel& kernel);

}  // namespace hayloft::simt::ptx
