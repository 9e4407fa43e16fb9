#pragma once

#include <cstddef>
#include <functional>
#include <random>
#include <string>

#include "simt/kernel.h"

// The machine that kernels run on: one fiber per CUDA thread of a block, blocks one after another. The order of the
// blocks, and of the threads between barriers, is drawn from a seeded generator, so that a barrier that is missing
// shows as a wrong result. Shared memory is full of NaN when a block begins. Used by one processor thread at a time.
namespace hayloft::simt {

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;
};

// Runs `kernel`, which calls `function`, once per thread of the grid. Returns what went wrong, in one line, or nothing:
// threads of a block that wait at different barriers or for threads that have returned, lanes of a warp likewise, an
// exception in the kernel. The threads still waiting then are unwound and the blocks left are dropped. Accesses out of
// bounds end the process with the sanitizer's report.
std::string run_grid(const Grid& grid, const void* function, const std::function<void()>& kernel,
                     std::mt19937_64& random);

}  // namespace hayloft::simt
