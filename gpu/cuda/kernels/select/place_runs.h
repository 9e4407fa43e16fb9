#pragma once

#include <cstdint>

#include "gpu/cuda/memory/cached_block.h"

namespace hayloft::gpu::cuda {

// Names the runs that a step reads, and their blocks.
struct RunReads {
  const std::int32_t* components = nullptr;  // [Hkv][r]
  const std::int32_t* planes = nullptr;      // [Hkv][r] of columns in planes, more before fewer; null: all of each
  int rank = 0;
  bool in_planes = false;
  std::int64_t tokens = 0;  // of the store
  // u64 [2], to which the bytes that the device holds already are added: of columns, and of scales or ranges. May be
  // null.
  unsigned long long* held_bytes = nullptr;
};

// Says of which blocks runs are placed, and where that goes: `places` of every block (RunPlaces::reads of them for each
// KV head). Runs that are not held take slots as index::RunCache says; such a slot counts as holding its run from here
// on, so whatever scans the blocks next must fill it.
struct RunPlacing {
  RunLayout layout;
  RunReads reads;
  RunPlaces places;
  std::uint32_t* to = nullptr;
  std::int64_t blocks = 0;  // 0: nothing is placed
};

// Queues what places planes and counts the reads. Whole columns are placed by choose_components().
void place_planes(const RunPlacing& placing, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
