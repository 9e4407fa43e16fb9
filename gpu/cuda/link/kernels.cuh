#pragma once

#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/link/pattern.h"

// The kernels of the link benchmark. Host memory holds a pattern that is a function of where it lies, so every kernel
// checks what it reads as it reads it: the check is the payload's verification, and keeps the loads from being dropped.
namespace hayloft::gpu::cuda {

// Returns how many of the four words at `index16` (counted in 16 bytes) are wrong.
__device__ inline unsigned link_errors(uint4 x, std::uint64_t index16) {
  const std::uint64_t word = index16 * 4;
  return (x.x != link_word(word)) + (x.y != link_word(word + 1)) + (x.z != link_word(word + 2)) +
         (x.w != link_word(word + 3));
}

inline constexpr int kLinkLoads = 4;  // of 16 bytes that a thread has under way at once

__device__ inline void report_link_errors(unsigned errors, unsigned* wrong) {
  if (errors) atomic_add(wrong, errors);
}

[[maybe_unused]] static __global__ void link_nothing() {}

// to[i] = from[i] for i in [0, count), in units of 16 bytes; one side lies in host memory.
[[maybe_unused]] static __global__ void link_copy(const uint4* from, uint4* to, std::int64_t count) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (kLinkLoads - 1) * threads < count; i += kLinkLoads * threads) {
    uint4 x[kLinkLoads];
    for (int j = 0; j < kLinkLoads; ++j) x[j] = load16_once(from + i + j * threads);
    for (int j = 0; j < kLinkLoads; ++j) store16(to + i + j * threads, x[j]);
  }
  for (; i < count; i += threads) store16(to + i, load16_once(from + i));
}

// Checks device memory that `first` (in 16 bytes) of the pattern was copied to.
[[maybe_unused]] static __global__ void link_check(const uint4* data, std::int64_t count, std::uint64_t first,
                                                   unsigned* wrong) {
  unsigned errors = 0;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    errors += link_errors(load16(data + i), first + static_cast<std::uint64_t>(i));
  }
  report_link_errors(errors, wrong);
}

// The pattern itself, into device memory.
[[maybe_unused]] static __global__ void link_fill(uint4* data, std::int64_t count, std::uint64_t first) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    const std::uint64_t word = (first + static_cast<std::uint64_t>(i)) * 4;
    data[i] = uint4{link_word(word), link_word(word + 1), link_word(word + 2), link_word(word + 3)};
  }
}

// Pieces of 2^shift units of 16 bytes that begin at starts[0 .. count) of the pattern: the runs of columns, or rows.
struct LinkRuns {
  const std::int64_t* starts = nullptr;
  std::int64_t count = 0;
  int shift = 0;
};

// Neighbouring lanes read neighbouring units, and a piece longer than a warp's reach goes on in the warp's next load.
__device__ inline unsigned gather_errors(const uint4* data, const LinkRuns& runs) {
  const std::int64_t units = runs.count << runs.shift;
  const std::int64_t mask = (std::int64_t{1} << runs.shift) - 1;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned errors = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < units;
       i += kLinkLoads * threads) {
    std::int64_t at[kLinkLoads];
    uint4 x[kLinkLoads];
    for (int j = 0; j < kLinkLoads; ++j) {
      const std::int64_t unit = i + j * threads;
      at[j] = unit < units ? runs.starts[unit >> runs.shift] + (unit & mask) : -1;
    }
    for (int j = 0; j < kLinkLoads; ++j) {
      if (at[j] >= 0) x[j] = load16_once(data + at[j]);
    }
    for (int j = 0; j < kLinkLoads; ++j) {
      if (at[j] >= 0) errors += link_errors(x[j], static_cast<std::uint64_t>(at[j]));
    }
  }
  return errors;
}

// Reads pieces out of host memory: runs of columns, then those of their scales, if any; or rows.
[[maybe_unused]] static __global__ void link_gather(const uint4* data, LinkRuns first, LinkRuns then, unsigned* wrong) {
  report_link_errors(gather_errors(data, first) + gather_errors(data, then), wrong);
}

// Counts the errors of a tile in device memory, [columns][blocks of runs]; `runs` has them block by block.
__device__ inline unsigned tile_errors(const uint4* tile, const LinkRuns& runs, int columns) {
  const std::int64_t units = runs.count << runs.shift;
  const std::int64_t mask = (std::int64_t{1} << runs.shift) - 1;
  const std::int64_t blocks = runs.count / columns;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned errors = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < units; i += threads) {
    const std::int64_t run = i >> runs.shift;
    const std::int64_t start = runs.starts[run % blocks * columns + run / blocks];
    errors += link_errors(load16(tile + i), static_cast<std::uint64_t>(start + (i & mask)));
  }
  return errors;
}

// Checks a tile of chosen columns that lie side by side, and their scales, if any.
[[maybe_unused]] static __global__ void link_check_tile(const uint4* column_tile, const uint4* scale_tile,
                                                        LinkRuns columns, LinkRuns scales, int rank, unsigned* wrong) {
  report_link_errors(tile_errors(column_tile, columns, rank) + tile_errors(scale_tile, scales, rank), wrong);
}

// One thread that follows `hops` links from `start`: each unit's first word names the next unit. One load at a time.
[[maybe_unused]] static __global__ void link_chase(const uint4* data, unsigned start, int hops, unsigned* end) {
  unsigned at = start;
  for (int i = 0; i < hops; ++i) at = load16_once(data + at).x;
  *end = at;
}

}  // namespace hayloft::gpu::cuda
